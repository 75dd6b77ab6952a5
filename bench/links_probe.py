#!/usr/bin/env python3
"""What a TCP connection really gets over a link; bench/links.sh measures its links before use.

usage: links_probe.py receive ADDRESS PORT      prints Mb/s of payload, then ends
       links_probe.py send ADDRESS PORT SECONDS
"""
import socket
import sys
import time

DEADLINE_S = 20
CHUNK = 1 << 16


def receive(address, port):
    with socket.create_server((address, port)) as server:
        server.settimeout(DEADLINE_S)
        connection = server.accept()[0]
    connection.settimeout(DEADLINE_S)
    buffer = bytearray(CHUNK)
    # The first bytes pass a token bucket that is full; the count starts when it has run empty.
    started, skipped, count = None, 0, 0
    while True:
        got = connection.recv_into(buffer)
        if got == 0:
            break
        if skipped < 4 * CHUNK:
            skipped += got
            started = time.monotonic()
        else:
            count += got
    seconds = time.monotonic() - started if started is not None else 0
    print(f"{count * 8e-6 / seconds:.1f}" if seconds > 0 else "0")


def send(address, port, seconds):
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            connection = socket.create_connection((address, port), DEADLINE_S)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    content = bytes(CHUNK)
    end = time.monotonic() + seconds
    with connection:
        while time.monotonic() < end:
            connection.sendall(content)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "receive":
        receive(sys.argv[2], int(sys.argv[3]))
    elif len(sys.argv) == 5 and sys.argv[1] == "send":
        send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
