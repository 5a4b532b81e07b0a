"""The chart of one run: horizontal bars, Lapse in colour, everybody else in grey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench import file, memory
from bench.claims import size_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.page import Run

_OURS: Final = ("#0b6e4f", "#7cc6a4")  # larger store, smaller store
_OTHERS: Final = ("#6b7280", "#c3c8d0")
_BAR: Final = 0.38


def draw(run: Run, path: Path) -> None:
    """Write a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(15, 8.2), layout="constrained")
    figure.suptitle(
        "Lapse keys beside its peers, one run, one machine", fontsize=15, fontweight="bold", x=0.01, ha="left"
    )
    for place, (operation, title) in enumerate((("get", "get"), ("insert", "insert if absent"))):
        _bars(
            axes[0][place],
            memory.NAMES,
            {size: {name: got[name].rates[operation] for name in memory.NAMES} for size, got in run.memory.items()},
            title=f"Memory: {title}",
            unit="operations per second of CPU time, log scale",
            label=_rate,
        )
        _bars(
            axes[1][place],
            file.NAMES,
            {size: {name: got[name][operation] for name in file.NAMES} for size, got in run.file.items()},
            title=f"File: {title}",
            unit=f"operations per second{' of CPU time' if operation == 'get' else ''}, log scale",
            label=_rate,
        )
    largest = max(run.memory)
    _bars(
        axes[0][2],
        memory.NAMES,
        {largest: {name: run.memory[largest][name].bytes_per_key for name in memory.NAMES}},
        title="Memory: size of a record",
        unit="bytes per key, beyond the key and the value",
        label=lambda number: f"{number:.0f}",
        log=False,
    )
    _bars(
        axes[1][2],
        list(run.expiry),
        {run.plans.expiry.keys: {name: got.sweeping.worst / 1e6 for name, got in run.expiry.items()}},
        title="Expiry: longest pause of a reader",
        unit="milliseconds, log scale",
        label=lambda number: f"{number:,.1f} ms" if number < 100 else f"{number:,.0f} ms",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, facecolor="white")
    plt.close(figure)


def _bars(
    axis: Axes,
    names: Sequence[str],
    series: Mapping[int, Mapping[str, float]],
    *,
    title: str,
    unit: str,
    label: Callable[[float], str],
    log: bool = True,
) -> None:
    """One panel: a group of bars per contender, one bar per size."""
    sizes = sorted(series, reverse=True)
    height = 2 * _BAR / len(sizes)
    for number, size in enumerate(sizes):
        for row, name in enumerate(names):
            shade = (_OURS if name.startswith("lapse") else _OTHERS)[number]
            value = series[size][name]
            bar = axis.barh(row + number * height - (len(sizes) - 1) * height / 2, value, height, color=shade)
            axis.bar_label(bar, [f"{label(value)}  ({size_name(size)})"], padding=3, fontsize=8, color="#374151")
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    if log:
        axis.set_xscale("log")
    values = [value for rates in series.values() for value in rates.values()]
    low = min(values) / 2 if log else 0
    axis.set_xlim(low, max(values) * (8 if log else 1.3))
    axis.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axis.set_xlabel(unit, loc="left", fontsize=9, color="#374151")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", color="#e5e7eb", linewidth=0.6)
    axis.set_axisbelow(True)


def _rate(rate: float) -> str:
    return f"{rate / 1e6:.1f}M" if rate >= 1e6 else f"{rate / 1e3:.0f}k" if rate >= 1e4 else f"{rate:,.0f}"
