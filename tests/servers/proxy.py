"""A TCP proxy between the product and a server, for faults of the network that a test can switch on and off."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close by a reset, as a firewall or a killed host does


class Proxy:
    """Passes bytes on, unless told otherwise. Change the attributes at any time; they count for all connections."""

    def __init__(self, port: int) -> None:
        #: "pass"; "drop": swallow what the client sends; "cut": reset the connection before the server has read it.
        self.requests = "pass"
        #: "pass"; "hold": keep answers back until they pass again; "cut": reset when the server has executed.
        self.replies = "pass"
        self.delay = 0.0  #: seconds, each way
        self.refusing = False  #: reset new connections at once
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._links: set[_Link] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def heal(self) -> None:
        """Pass all on again. Connections that have lost bytes are cut."""
        self.requests, self.replies, self.delay, self.refusing = "pass", "pass", 0.0, False
        self.cut(lambda link: link.has_lost)

    def cut(self, which=lambda link: True) -> None:  # type: ignore[no-untyped-def]
        """Reset connections."""
        for link in list(self._links):
            if which(link):
                link.reset()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                _reset(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server), 5)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            with suppress(OSError):  # it is gone already
                self._links.add(_Link(self, client, server))

    def forget(self, link: _Link) -> None:
        self._links.discard(link)


class _Link:
    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.has_lost = False
        self._proxy = proxy
        self._ends = client, server
        for end in self._ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink, allow in ((client, server, self._request), (server, client, self._reply)):
            threading.Thread(target=self._pump, args=(source, sink, allow), daemon=True).start()

    def reset(self) -> None:
        for end in self._ends:
            _reset(end)
        self._proxy.forget(self)

    def _pump(self, source: socket.socket, sink: socket.socket, allow) -> None:  # type: ignore[no-untyped-def]
        with suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(self._proxy.delay)
                if allow():
                    sink.sendall(data)
        self.reset()

    def _request(self) -> bool:
        if self._proxy.requests == "cut":
            self.reset()
        if self._proxy.requests == "drop":
            self.has_lost = True
        return self._proxy.requests == "pass"

    def _reply(self) -> bool:
        while self._proxy.replies == "hold":
            time.sleep(0.005)
        if self._proxy.replies == "cut":
            self.reset()
        return self._proxy.replies == "pass"


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """Yield a proxy to that port of this host."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
