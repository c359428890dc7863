"""A browser that fetches: requests over HTTP/1.1 or HTTP/2, and calls of gRPC-web by them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from struct import pack

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h11
from hyperframe.frame import GoAwayFrame

from tests.helpers.certificates import authority

GRPC_WEB = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}


def framed(message: bytes, flag: int = 0) -> bytes:
    """A frame of gRPC-web."""
    return pack(">BI", flag, len(message)) + message


class Answer:
    """What comes of one request, as it comes."""

    def __init__(self):
        self.status = 0
        self.headers = {}
        self.trailers = {}
        """Those of gRPC-web: of the last frame, or of the headers where there is no body."""
        self.body = b""
        self.is_whole = False
        self.is_lost = False
        self.cancel = None
        """Stop fetching."""
        self.send = None
        """Send more of the request; whether that is all of it."""
        self._changed = asyncio.Event()

    def begin(self, status, headers):
        self.status, self.headers = status, headers
        self.trailers = {name: text for name, text in headers.items() if name.startswith("grpc-")}
        self._changed.set()

    def more(self, data):
        self.body += data
        self._changed.set()

    def end(self, *, is_lost=False):
        self.is_whole, self.is_lost = not is_lost, is_lost
        self._changed.set()

    async def until(self, is_so):
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    async def begun(self):
        await self.until(lambda: self.status or self.is_lost)
        return self

    async def whole(self):
        await self.until(lambda: self.is_whole or self.is_lost)
        assert self.is_whole, "the answer was cut"
        return self

    async def message(self):
        """The next message; None after the last."""
        await self.until(lambda: self._has_frame() or self.is_whole or self.is_lost)
        if not self._has_frame():
            assert not self.body, "a frame was cut"
            return None
        flag, size = self.body[0], int.from_bytes(self.body[1:5], "big")
        frame, self.body = self.body[5 : 5 + size], self.body[5 + size :]
        if flag == 0:
            return frame
        assert flag == 0x80
        lines = [line for line in frame.decode("ascii").split("\r\n") if line]
        pairs = [line.split(": ", 1) for line in lines]
        self.trailers |= dict(pairs)
        await self.whole()
        assert not self.body, "something comes behind the trailers"
        return None

    async def messages(self):
        """All of them, to the end."""
        found = []
        while (message := await self.message()) is not None:
            found.append(message)
        return found

    def _has_frame(self):
        return len(self.body) >= 5 and len(self.body) >= 5 + int.from_bytes(self.body[1:5], "big")

    @property
    def code(self):
        """The status of the call, by its number."""
        return int(self.trailers["grpc-status"])


class Browser:
    """``http``: "1.1" (a connection for each request) or "2" (one for all)."""

    def __init__(self, port, *, http, is_tls=True, reads=True):
        self.port = port
        self.http = http
        self.is_tls = is_tls
        self.reads = reads
        """Whether it reads what comes."""
        self.origin = f"{'https' if is_tls else 'http'}://localhost:{port}"
        self._ends = contextlib.AsyncExitStack()
        self._h2 = None
        self._answers = {}

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self._ends.aclose()

    async def call(self, method, *messages, metadata=(), ends=True):
        """A call: the answer, when its headers are there or it waits for more messages."""
        headers = {**GRPC_WEB, "origin": self.origin, **dict(metadata)}
        body = b"".join(map(framed, messages))
        answer = await self.request("POST", method, headers, body, ends=ends)
        return await answer.begun() if ends else answer

    async def unary(self, method, message, metadata=()):
        """The only message of an answer, and the answer."""
        answer = await self.call(method, message, metadata=metadata)
        messages = await answer.messages()
        assert len(messages) <= 1
        return next(iter(messages), None), answer

    async def request(self, method, path, headers=(), body=b"", *, ends=True):
        make = self._by_http2 if self.http == "2" else self._by_http1
        return await make(method, path, {**dict(headers)}, body, ends)

    async def connect(self):
        """A connection of its own."""
        context = None
        if self.is_tls:
            context = ssl.create_default_context(cadata=authority().certificate.decode())
            context.set_alpn_protocols(["h2" if self.http == "2" else "http/1.1"])
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            self.port,
            ssl=context,
            server_hostname="localhost" if context else None,
            limit=2**16,
        )

        async def close():
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        self._ends.push_async_callback(close)
        return reader, writer

    def _watch(self, work):
        task = asyncio.create_task(work)

        async def cancel():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._ends.push_async_callback(cancel)

    # --- HTTP/1.1 -------------------------------------------------------------------------------

    async def _by_http1(self, method, path, headers, body, ends):
        reader, writer = await self.connect()
        http = h11.Connection(h11.CLIENT)
        length = {"content-length": str(len(body))} if ends else {"transfer-encoding": "chunked"}
        fields = {"host": f"localhost:{self.port}", **headers, **length}
        writer.write(http.send(h11.Request(method=method, target=path, headers=[*fields.items()])))

        def send(data, ends):
            if data:
                writer.write(http.send(h11.Data(data=data)))
            if ends:
                writer.write(http.send(h11.EndOfMessage()))

        send(body, ends)
        answer = Answer()
        answer.send = send
        answer.cancel = writer.transport.abort
        if self.reads:
            self._watch(self._read_http1(reader, http, answer))
        return answer

    async def _read_http1(self, reader, http, answer):
        with contextlib.suppress(OSError, h11.RemoteProtocolError):
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    http.receive_data(await reader.read(65_536))
                elif isinstance(event, h11.Response):
                    headers = {name.decode(): text.decode() for name, text in event.headers}
                    answer.begin(event.status_code, headers)
                elif isinstance(event, h11.Data):
                    answer.more(bytes(event.data))
                else:
                    answer.end(is_lost=not isinstance(event, h11.EndOfMessage))
                    return
        answer.end(is_lost=True)

    # --- HTTP/2 ---------------------------------------------------------------------------------

    async def _by_http2(self, method, path, headers, body, ends):
        if self._h2 is None:
            self._h2 = await self._begin_http2()
        client, writer = self._h2
        stream = client.get_next_available_stream_id()
        authority_name = headers.pop("host", f"localhost:{self.port}")
        fields = {
            ":method": method,
            ":scheme": "https" if self.is_tls else "http",
            ":path": path,
            ":authority": authority_name,
            **headers,
        }
        answer = self._answers[stream] = Answer()
        client.send_headers(stream, [*fields.items()], end_stream=ends and not body)

        def send(data, ends):
            for at in range(0, len(data), client.max_outbound_frame_size):
                client.send_data(stream, data[at : at + client.max_outbound_frame_size])
            if ends:
                client.end_stream(stream)
            writer.write(client.data_to_send())

        def cancel():
            client.reset_stream(stream, 8)
            writer.write(client.data_to_send())
            answer.end(is_lost=True)

        if body:
            send(body, ends)
        writer.write(client.data_to_send())
        answer.send, answer.cancel = send, cancel
        return answer

    async def _begin_http2(self):
        reader, writer = await self.connect()
        client = h2.connection.H2Connection(
            h2.config.H2Configuration(
                header_encoding="utf-8",
                # What is wrong is for the server to find.
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        # Browsers read the answers they wait for behind a GOAWAY; h2 takes nothing any more.
        client._frame_dispatch_table[GoAwayFrame] = lambda frame: ([], [])
        client.initiate_connection()
        writer.write(client.data_to_send())
        if self.is_tls:
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        self._watch(self._read_http2(reader, writer, client))
        return client, writer

    async def _read_http2(self, reader, writer, client):
        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
            while data := await reader.read(65_536):
                for event in client.receive_data(data):
                    self._heard(event, client)
                writer.write(client.data_to_send())
        for answer in self._answers.values():
            if not answer.is_whole:
                answer.end(is_lost=True)

    def _heard(self, event, client):
        answer = self._answers.get(getattr(event, "stream_id", None))
        if isinstance(event, h2.events.ResponseReceived):
            headers = dict(event.headers)
            answer.begin(int(headers.pop(":status")), headers)
        elif isinstance(event, h2.events.DataReceived):
            answer.more(event.data)
            if self.reads:
                client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            answer.end()
        elif isinstance(event, h2.events.StreamReset) and not answer.is_whole:
            answer.end(is_lost=True)
