"""The demo: things with short TTLs in every domain, for people who see Lapse for the first time.

It is a state of the folder: a note there says since when it runs and until when, so a process that is restarted goes on
with it. The process that leads makes its things, some at once and then one after the other, and ends it after an hour.

- `note`: what is written down of it, and the marks by which its things are known.
- `making`: one maker per domain.
- `removal`: which things are its own, and their end.
- `control`: start, status and stop, and what is done at each look.
- `running`: the loop of a process, and the settings of ``lapse up --demo``.

Each imports only from those above it. What is guaranteed, and what is not, they say themselves.
"""
