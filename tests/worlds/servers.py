"""Small servers on this machine."""

import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer


@contextmanager
def served_by(handler):
    """The address of an API whose requests this handler answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as opened:
        thread = threading.Thread(target=opened.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{opened.server_port}/v1"
        finally:
            opened.shutdown()
            thread.join()
