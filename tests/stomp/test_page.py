"""The frames of docs/stomp.md are those of the real app, byte for byte.

The page is a conversation. A block that begins with "```stomp client" is sent, and what comes back has to be the block
that begins with "```stomp server" (of several frames in any order). `after=60` lets seconds pass first, and `new` is
another connection. With HEADWAY_WRITE_PAGES=1 what the server says is written into the page instead.
"""

import asyncio
import os
import re
from contextlib import AsyncExitStack
from pathlib import Path

from tests.stomp.asgi_peer import Peer

from headway import Once
from headway.once import stomp_app
from headway.testing import ManualClock

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "stomp.md"
BLOCK = re.compile(r"^```stomp (client|server)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class RawPeer(Peer):
    """Keeps what was sent to it as text."""

    async def _send(self, message):
        self.sent.put_nowait(message.get("text", message["type"]))

    async def shake_hands(self):
        self.frame("CONNECT", accept_version="1.2", host="here")
        assert (await self.next()).startswith("CONNECTED")


async def quiet(peer):
    """All that the app says now; it has nothing more to do when several turns of the loop bring nothing."""
    found, silent = [], 0
    while silent < 50:
        await asyncio.sleep(0)
        said = [text for text in peer.now() if text.endswith("\0")]
        silent = 0 if said else silent + 1
        found += said
    return found


async def played(page):
    """The page, with what the server really says."""
    clock = ManualClock()
    gate = Once(60, "strict", clock=clock)
    app = stomp_app({"alarms": gate}, key_frame_every=None)
    parts, end = [], 0
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(RawPeer(app))
        for block in BLOCK.finditer(page):
            side, flags, text = block.groups()
            parts.append(page[end : block.start()])
            end = block.end()
            if side == "client":
                if "new" in flags:
                    peer = await stack.enter_async_context(RawPeer(app))
                    await peer.shake_hands()
                peer.put(text.rstrip("\n").replace("^@", "\0"))
                clock.advance(0.25)
            else:
                if after := re.search(r"after=([\d.]+)", flags):
                    clock.advance(float(after[1]))
                found = await quiet(peer)
                wanted = text.split("^@\n")
                # As they are written, where they are the same: two frames may come in either order.
                found.sort(key=lambda frame: wanted.index(frame[:-1]) if frame[:-1] in wanted else 0)
                text = "".join(f"{frame[:-1]}^@\n" for frame in found)
            parts.append(f"```stomp {side}{flags}\n{text}```")
    return "".join(parts) + page[end:]


def test_the_frames_of_the_page_are_those_of_the_app():
    page = PAGE.read_text(encoding="utf-8")
    assert len(BLOCK.findall(page)) >= 10
    found = asyncio.run(played(page))
    if os.environ.get("HEADWAY_WRITE_PAGES", "0") not in ("", "0"):
        PAGE.write_text(found, encoding="utf-8")
    assert found == page


def test_the_browser_client_of_the_page_is_that_of_the_example():
    (shown,) = re.findall(
        r"^```js browser\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert shown == (ROOT / "examples" / "browser" / "stomp.js").read_text(encoding="utf-8")
