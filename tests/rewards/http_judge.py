"""An HTTP server in a process of its own that scores text by its length, and fails as services do.

    python http_judge.py PORT_FILE

POST /score {"text": …, "mode": …} answers {"score": characters}. Modes: `ok`; `busy:N`, 503 to the first N requests of this
mode; `refuse`, 400; `hang`; `shape`, a list; `die`, which ends the process in the middle of an answer.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SEEN: Counter[str] = Counter()
RUNNING: list[int] = []
MOST = [0]
LOCK = threading.Lock()


class Judge(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        mode, text = body.get("mode", "ok"), body["text"]
        with LOCK:
            SEEN[mode] += 1
            count = SEEN[mode]
            RUNNING.append(1)
            MOST[0] = max(MOST[0], len(RUNNING))
        time.sleep(body.get("seconds", 0.0))
        with LOCK:
            RUNNING.pop()
        if mode.startswith("busy:") and count <= int(mode.partition(":")[2]):
            self._answer(503, {"error": "busy"})
        elif mode == "refuse" or text == "refused":
            self._answer(400, {"error": "no"})
        elif mode == "hang":
            time.sleep(600)
        elif mode == "die":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            self.wfile.flush()
            os._exit(1)
        else:
            self._answer(200, [1, 2] if mode == "shape" else {"score": float(len(text)), "most": MOST[0]})

    def _answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    Path(sys.argv[1]).write_text(str(server.server_address[1]))
    server.serve_forever()
