import ssl

from lapse.client.transport import TimeLimits
from lapse.core.clock import Clock
from lapse.engine.explanation import Explanation
from lapse.engine.journal.view import JournalRowView
from lapse.engine.plans.plan import Plan
from lapse.engine.trash import TrashEntry
from lapse.engine.verbs.contract import (
    AppliedPlan,
    ApplyRequest,
    Approval,
    ApproveRequest,
    DeleteRequest,
    EmptiedTrash,
    EmptyTrashRequest,
    ExtendRequest,
    FreezeRequest,
    FrozenView,
    HoldRequest,
    JournalRequest,
    PlanRequest,
    ReleaseRequest,
    ResumeRequest,
    StatusView,
    SteeredView,
    TrashRequest,
    UndoneView,
    UndoRequest,
    WhyRequest,
)
from lapse.engine.view import ViewPage

class Client:
    def __init__(
        self,
        server: str,
        token: str,
        *,
        limits: TimeLimits = ...,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None: ...
    def plan(self, asked: PlanRequest) -> Plan: ...
    def apply(self, asked: ApplyRequest) -> AppliedPlan: ...
    def approve(self, asked: ApproveRequest) -> Approval: ...
    def why(self, asked: WhyRequest) -> Explanation: ...
    def hold(self, asked: HoldRequest) -> SteeredView: ...
    def release(self, asked: ReleaseRequest) -> SteeredView: ...
    def extend(self, asked: ExtendRequest) -> SteeredView: ...
    def delete(self, asked: DeleteRequest) -> SteeredView: ...
    def undo(self, asked: UndoRequest) -> UndoneView: ...
    def trash(self, asked: TrashRequest) -> ViewPage[TrashEntry]: ...
    def empty_trash(self, asked: EmptyTrashRequest) -> EmptiedTrash: ...
    def freeze(self, asked: FreezeRequest) -> FrozenView: ...
    def resume(self, asked: ResumeRequest) -> FrozenView: ...
    def journal(self, asked: JournalRequest) -> ViewPage[JournalRowView]: ...
    def status(self) -> StatusView: ...
    def check(self) -> None: ...
