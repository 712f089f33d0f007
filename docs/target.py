"""A target to watch schedules with: prints every call it gets. Standard library only: `python3 docs/target.py`."""

from http.server import BaseHTTPRequestHandler, HTTPServer


class Target(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        names = ("Fleet-Schedule", "Fleet-Scheduled-At", "Fleet-Attempt")
        print(*(self.headers.get(name) for name in names), body, flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing else."""


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", 8000), Target).serve_forever()
