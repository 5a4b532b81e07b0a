"""A receiver of webhooks: verifies each event, takes it once, and prints it as one line. Standard library only.

Run it with the secret of the webhook in the environment: ``WEBHOOK_SECRET=whsec_... python3 receiver.py 8080``.
What it has seen is kept in memory here; a receiver that must not act twice keeps it where it keeps its own work, in the
same transaction.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import sys
import time
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from email.message import Message

SECRET = base64.b64decode(os.environ.get("WEBHOOK_SECRET", "").removeprefix("whsec_"))
TOLERANCE_SECONDS = 300
LONGEST_BODY = 1_000_000
REMEMBERED = 100_000

seen: OrderedDict[str, None] = OrderedDict()
seen_lock = Lock()


def is_genuine(headers: Message, body: bytes) -> bool:
    """Whether somebody who knows the secret has sent this, and has done so just now."""
    event, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > TOLERANCE_SECONDS:  # noqa: TID251 - no part of Lapse
        return False
    expected = hmac.digest(SECRET, f"{event}.{timestamp}.".encode() + body, "sha256")
    signatures = headers.get("webhook-signature", "").split()  # one for each secret that is active
    return any(hmac.compare_digest(b"v1," + base64.b64encode(expected), one.encode()) for one in signatures)


def is_new(event: str) -> bool:
    """Whether an event has not come before; one that comes again is answered as the first time."""
    with seen_lock:
        if event in seen:
            return False
        seen[event] = None
        if len(seen) > REMEMBERED:
            seen.popitem(last=False)
        return True


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to what is genuine, and 401 to everything else."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Take one event."""
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length) if length <= LONGEST_BODY else b""
        self.close_connection = length > LONGEST_BODY
        genuine = is_genuine(self.headers, body)
        if genuine and is_new(self.headers["webhook-id"]):
            told = json.loads(body)
            print(told["type"], told.get("subject", "-"), told["data"]["reason"], flush=True)  # noqa: T201 - its output
        self.send_response(204 if genuine else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing about requests: standard output is for events."""


if __name__ == "__main__":
    if not SECRET:
        sys.exit("WEBHOOK_SECRET is not set")
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
