"""Strangers in thousands, for siege.py and bench/strangers.py: a recorder of genuine connections,
and a siege of ports by garbage, replays, cut hellos, port scans and connections that only stay.
"""
import collections
import random
import socket
import struct
import threading
import time

ETH_P_IP = 0x0800
STREAM_BYTES = 4096  # of a genuine connection: its hello, its key, and what follows
HELD_MOST = 400  # connections that stay open, at all ports together
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class Recorder:
    """Keeps the first bytes of each TCP connection over loopback while it runs, per port that was
    dialled. Needs the right to read raw packets: PermissionError where there is none."""

    def __init__(self):
        self.packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
        self.packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.packets.bind(("lo", ETH_P_IP))
        self.packets.settimeout(0.1)
        self.segments = {}  # (port that dials, port that is dialled) -> {place: bytes}
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.done.is_set():
            try:
                self.take(self.packets.recv(65536))
            except TimeoutError:
                pass
        self.packets.close()

    def take(self, packet):
        if len(packet) < 40 or packet[9] != socket.IPPROTO_TCP:
            return
        tcp = packet[(packet[0] & 15) * 4:struct.unpack_from("!H", packet, 2)[0]]
        source, target, place = struct.unpack_from("!HHI", tcp)
        if tcp[13] & 0x12 == 0x02:  # SYN without ACK: who sends it dials
            self.segments[source, target] = {"first": place + 1}
        flow = self.segments.get((source, target))
        content = tcp[(tcp[12] >> 4) * 4:]
        if flow is not None and content:
            at = (place - flow["first"]) % 2**32
            if at < STREAM_BYTES:
                flow[at] = content

    def stop(self):
        """Port that was dialled -> the streams of those who dialled it."""
        self.done.set()
        self.thread.join()
        streams = collections.defaultdict(list)
        for (_, target), flow in self.segments.items():
            stream = b""
            while len(stream) in flow:
                stream += flow[len(stream)]
            if stream:
                streams[target].append(stream[:STREAM_BYTES])
        return streams


class Siege:
    """Connections to ports, without end and without waiting for an answer. `hellos` of a port are
    genuine streams: replayed whole and cut short. `rate`: connections a second, None: unbounded."""

    def __init__(self, garbage, rate=None, seed=5):
        self.garbage = [content for content in garbage if content]
        self.rate = rate
        self.source = random.Random(seed)
        self.held = collections.deque()
        self.count = 0
        self.kinds = [self.scan, self.noise, self.known, self.cut, self.replay, self.stay]

    def scan(self, _):
        return b"", "close"

    def noise(self, _):
        return self.source.randbytes(self.source.randrange(1, 4096)), "close"

    def known(self, _):
        return self.source.choice(self.garbage), "reset"

    def cut(self, hellos):
        hello = self.source.choice(hellos)
        return hello[:self.source.randrange(1, len(hello) + 1)], "stay"

    def replay(self, hellos):
        return self.source.choice(hellos), "stay"

    def stay(self, _):
        return b"", "stay"

    def connect(self, address, hellos):
        content, end = self.source.choice(self.kinds)(hellos)
        peer = socket.socket()
        peer.setblocking(False)
        self.count += 1
        try:
            # Loopback connects at once, or never if nobody takes what has come before.
            peer.connect_ex(address)
            if content:
                peer.send(content)
            if end == "reset":
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        except OSError:
            pass
        if end != "stay":
            peer.close()
            return
        self.held.append(peer)
        if len(self.held) > HELD_MOST:
            self.held.popleft().close()

    def wave(self, ports, count, until=None):
        """`count` connections to the ports [(address, hellos)] in turn, at the rate; or fewer, when
        until() is true."""
        began, first = time.monotonic(), self.count
        for i in range(count):
            if self.rate:
                late = (self.count - first) / self.rate - (time.monotonic() - began)
                if late > 0.002:
                    time.sleep(late)
            if until is not None and i % 50 == 0 and until():
                return
            address, hellos = ports[i % len(ports)]
            self.connect(address, hellos or self.garbage)

    def close(self):
        while self.held:
            self.held.popleft().close()
