#!/usr/bin/env python3
"""Proves that Rubato trains over RDMA (RoCE), on a machine without such hardware: two guests of
qemu, emulated in software, each with Debian's kernel and its software RoCE device (rdma_rxe) on a
network card; a wire of virtio between them.

  tcp   a server with two shards in one guest, two workers in the other, by --tls tcp, at once after
        boot, when the kernel does not call the link running yet (the fact "link" is "down")
  rc    the same job by --tls rc: the same weights, bit for bit; its log names rc_verbs; the RoCE
        device sent at least the packets that the pushed bytes need, and none in the job before
  lost  in --mode async a worker is killed: the others go on to the end
  early a worker is killed while its peers connect to it: they name it and end, no abort
  gone  the same without the device: the processes refuse, say why, and do not hang

Needs the packages of `scripts/setup --roce`; the kernel is downloaded with apt-get into the folder,
once. Exit code 77, a skip, where one of them cannot be had.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from glob import glob

HERE = os.path.dirname(os.path.abspath(__file__))
DOWNLOAD_S = 120
GUESTS_S = 360  # both, from power on to off
ROCE_MTU = 4096  # payload bytes of the largest packet
MEMORY_MIB = 640
WORKERS = 2  # of each job; they push the same number of bytes
LIBRARIES = f"/usr/lib/{os.uname().machine}-linux-gnu"

# All that the guests load, of a package that takes 400 MB unpacked.
KERNEL_FILES = ["./boot/vmlinuz-*"] + ["./lib/modules/*/" + name for name in (
    "modules.*", "kernel/drivers/infiniband/core/*", "kernel/drivers/infiniband/sw/rxe/*",
    "kernel/drivers/virtio/*", "kernel/drivers/net/virtio_net.ko",
    "kernel/drivers/net/net_failover.ko", "kernel/net/core/failover.ko",
    "kernel/net/ipv*/*udp_tunnel.ko", "kernel/fs/configfs/*", "kernel/crypto/crc32_generic.ko")]

# Without the last, a kernel on a busy machine finds at times that its emulated timer does not work.
KERNEL_OPTIONS = ("console=ttyS0 quiet panic=-1 nokaslr mitigations=off random.trust_cpu=on "
                  "no_timer_check")

# dlopened, and so not found by ldd.
PLUGINS = [f"{LIBRARIES}/ucx/*.so.0", f"{LIBRARIES}/libibverbs/librxe-rdmav*.so"]


def skip(reason):
    print(f"roce: skipped: {reason}")
    sys.exit(77)


def tool(name, package):
    path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if not path:
        skip(f"no {name}: install {package}, or all with scripts/setup --roce")
    return os.path.realpath(path)


def run(arguments, seconds, **options):
    return subprocess.run(arguments, timeout=seconds, check=True, **options)


def output(arguments, seconds=60):
    return run(arguments, seconds, stdout=subprocess.PIPE, encoding="utf-8").stdout


def fetch_kernel(folder):
    """Debian's current kernel, unpacked in a folder of its own: (its image, its version)."""
    unpacked = os.path.join(folder, "kernel")
    complete = os.path.join(unpacked, "complete")
    if not os.path.exists(complete):
        shutil.rmtree(unpacked, ignore_errors=True)
        os.makedirs(unpacked)
        try:
            depends = output(["apt-cache", "depends", "linux-image-amd64"])
            package = re.search(r"Depends: (linux-image-\S+)", depends).group(1)
            run(["apt-get", "download", "-q", package], DOWNLOAD_S, cwd=unpacked,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except (OSError, AttributeError, subprocess.SubprocessError):
            skip("apt-get cannot download linux-image-amd64's kernel (no network, not Debian, or "
                 "apt-get update is due)")
        (archive,) = glob(os.path.join(unpacked, "*.deb"))
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive],
                              stdout=subprocess.PIPE) as files:
            run(["tar", "-x", "-C", unpacked, "--wildcards", *KERNEL_FILES], 60,
                stdin=files.stdout)
        os.remove(archive)
        with open(complete, "w", encoding="utf-8"):
            pass
    (image,) = glob(os.path.join(unpacked, "boot", "vmlinuz-*"))
    return image, image.rpartition("/vmlinuz-")[2]


def copy_with_libraries(root, path, target):
    """A program or a plugin -> target under root, and all that it is linked with."""
    linked = re.findall(r"(/\S+) \(0x", output(["ldd", path]))
    for source, copy in [(path, target)] + [(library, library) for library in linked]:
        if not os.path.exists(root + copy):
            os.makedirs(os.path.dirname(root + copy), exist_ok=True)
            shutil.copy(source, root + copy)


def write_cpio(root, path):
    """The initramfs: an archive in the kernel's "newc" format."""
    with open(path, "wb") as file:
        def entry(name, mode, content):
            encoded = name.encode() + b"\0"
            fields = (entry.number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
            entry.number += 1
            file.write(b"070701" + b"".join(b"%08X" % field for field in fields) + encoded)
            file.write(b"\0" * (-file.tell() % 4) + content)
            file.write(b"\0" * (-file.tell() % 4))

        entry.number = 1
        for folder, folders, names in os.walk(root):
            for name in folders + names:
                whole = os.path.join(folder, name)
                content = b""
                if os.path.islink(whole):
                    content = os.readlink(whole).encode()
                elif os.path.isfile(whole):
                    with open(whole, "rb") as source:
                        content = source.read()
                entry(os.path.relpath(whole, root), os.lstat(whole).st_mode, content)
        entry("TRAILER!!!", 0, b"")


def write_text(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def build_initramfs(folder, binaries, version):
    busybox = tool("busybox", "busybox-static")
    root = os.path.join(folder, "root")
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "sbin", "dev", "proc", "sys", "tmp", "usr/bin", "usr/sbin"):
        os.makedirs(os.path.join(root, name))
    shutil.copy(busybox, os.path.join(root, "bin/busybox"))
    for name in output([busybox, "--list"]).split():
        if name not in ("busybox", "ip"):  # iproute2's ip is wanted
            os.symlink("busybox", os.path.join(root, "bin", name))
    os.symlink("../bin/busybox", os.path.join(root, "sbin/modprobe"))  # the kernel calls it there
    for name in ("ip", "rdma"):
        copy_with_libraries(root, tool(name, "iproute2"), f"/usr/sbin/{name}")
    plugins = [path for pattern in PLUGINS for path in glob(pattern)]
    if not any("librxe" in path for path in plugins):
        skip("no librxe-rdmav*.so: install ibverbs-providers, or all with scripts/setup --roce")
    for path in plugins:
        copy_with_libraries(root, path, path)
    for name in ("rubato-server", "rubato-worker"):
        copy_with_libraries(root, os.path.join(binaries, name), f"/usr/bin/{name}")
    write_text(f"{root}/etc/libibverbs.d/rxe.driver", "driver rxe\n")
    write_text(f"{root}/etc/passwd", "root:x:0:0:root:/:/bin/sh\n")
    write_text(f"{root}/etc/hosts", "127.0.0.1 localhost\n")
    write_text(f"{root}/data.txt", " ".join(f"line {i * i % 97} of it" for i in range(1000)))
    shutil.copy(os.path.join(HERE, "guest.sh"), f"{root}/init")
    shutil.copytree(f"{folder}/kernel/lib/modules/{version}", f"{root}/lib/modules/{version}")
    run([busybox, "depmod", "-b", root, version], 60)
    write_cpio(root, os.path.join(folder, "initrd.cpio"))
    shutil.rmtree(root)


def start_guest(folder, kernel, number):
    """A guest whose console goes to a file. The first one listens at the wire's socket."""
    server = "on" if number == 1 else "off"
    with open(os.path.join(folder, f"guest{number}.log"), "wb") as console:
        return subprocess.Popen(
            [tool("qemu-system-x86_64", "qemu-system-x86"), "-accel", "tcg,tb-size=128", "-cpu",
             "max", "-smp", "1", "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config",
             "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", kernel, "-initrd",
             "initrd.cpio", "-append", f"{KERNEL_OPTIONS} me={number}",
             "-netdev", f"stream,id=wire,addr.type=unix,addr.path=wire,server={server}", "-device",
             f"virtio-net-pci,netdev=wire,mac=52:54:00:77:00:0{number},host_mtu=4200,romfile="],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT)


def run_guests(folder, kernel):
    """Both, to their end or the deadline."""
    deadline = time.monotonic() + GUESTS_S
    wire = os.path.join(folder, "wire")
    if os.path.exists(wire):
        os.remove(wire)
    guests = [start_guest(folder, kernel, 1)]
    try:
        while not os.path.exists(wire) and time.monotonic() < deadline:
            if guests[0].poll() is not None:
                return
            time.sleep(0.05)
        guests.append(start_guest(folder, kernel, 2))
        for guest in guests:
            guest.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        print(f"roce: the guests did not end within {GUESTS_S} s")
    finally:
        for guest in guests:
            if guest.poll() is None:
                guest.kill()
                guest.wait()


class Guest:
    """What one guest said."""

    def __init__(self, folder, number):
        self.facts, self.logs = {}, {}
        with open(os.path.join(folder, f"guest{number}.log"), encoding="utf-8",
                  errors="replace") as file:
            self.console = file.read().replace("\r", "")
        for line in self.console.splitlines():
            if line.startswith("fact "):
                name, _, value = line[5:].partition(" ")
                self.facts[name] = value
            elif line.startswith("log "):
                name, _, text = line[4:].partition("|")
                self.logs.setdefault(name, []).append(text)

    def fact(self, name):
        return self.facts.get(name, "nothing")

    def number(self, name):
        text = self.fact(name)
        return int(text) if text.lstrip("-").isdigit() else -1

    def log(self, name):
        return "\n".join(self.logs.get(name, []))


class Verdict:
    """Counts what holds and says what does not."""

    def __init__(self):
        self.failed = 0

    def check(self, holds, what):
        self.failed += not holds
        print(f"{'ok    ' if holds else 'FAILED'} {what}")

    def check_exit(self, process, wanted):
        name, code, log = process
        self.check(code == wanted, f"{name}: exit code {code}, expected {wanted}")
        if code != wanted:
            print("\n".join("         " + line for line in log.splitlines()[-12:]))


def processes(first, second, job):
    """(name, exit code, log) of the job's processes."""
    return [(f"{job}: {name}", guest.fact(f"{job}.{name}.exit"), guest.log(f"{job}.{name}"))
            for name, guest in (("server", first), ("worker0", second), ("worker1", second))]


def judge(first, second):
    verdict = Verdict()
    for guest, name in ((first, "guest 1"), (second, "guest 2")):
        verdict.check(guest.fact("done") == "1", f"{name} came to its end (Linux "
                      f"{guest.fact('kernel')}, up after {guest.fact('up')} s)")
    for job, transport in (("tcp", r"weights by tcp of eth0"), ("rc", r"ucx: .*\brc_verbs/rxe0:1")):
        for process in processes(first, second, job):
            name, _, log = process
            verdict.check_exit(process, "0")
            verdict.check(re.search(transport, log), f"{name}: its log says {transport!r}")
    weights = [second.fact(f"{job}.weights") for job in ("tcp", "rc")]
    verdict.check(len(weights[0]) == 64 and weights[0] == weights[1],
                  f"the weights' SHA-256 by tcp {weights[0][:16]} is that by rc {weights[1][:16]}")
    metrics = [json.loads(line) for line in second.logs.get("rc.metrics", [])]
    pushed = WORKERS * sum(line["push_bytes"] for line in metrics
                           if line["schema"] == "rubato.step/1")
    packets = second.number("rc.sent")
    verdict.check(pushed > 0 and packets >= pushed // ROCE_MTU,
                  f"rc: guest 2 pushed {pushed} bytes in {packets} RoCE packets, at least "
                  f"{pushed // ROCE_MTU}")
    for guest, name in ((first, "guest 1"), (second, "guest 2")):
        sent = guest.number("tcp.sent")
        verdict.check(sent == 0, f"tcp: {name} sent {sent} RoCE packets, expected 0")
    verdict.check(second.fact("lost.killed") == "1", "lost: worker1 was killed")
    for process in processes(first, second, "lost")[:2]:
        verdict.check_exit(process, "0")
    verdict.check(re.search(r" warn worker 1 .* was lost", first.log("lost.server")),
                  "lost: the server says that worker 1 was lost")
    verdict.check(second.fact("early.killed") == "1", "early: worker1 was killed")
    for process in processes(first, second, "early")[:2]:
        name, _, log = process
        verdict.check_exit(process, "69")
        verdict.check(re.search(r" error .*worker 1 .* was lost", log),
                      f"{name}: it names worker 1")
    reasons = []
    for name, code, log in processes(first, second, "gone"):
        verdict.check(code.isdigit() and 0 < int(code) < 124,
                      f"{name}: exit code {code}, expected an error's and no deadline's")
        reasons += re.findall(r" error (.*no RDMA device belongs to interface eth0.*)", log)
    verdict.check(reasons, f"gone: a line says why: {reasons[0] if reasons else 'none'}")
    return verdict.failed


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", help="folder of rubato-server and rubato-worker")
    parser.add_argument("folder", help="for the kernel, which is kept, and the guests' consoles")
    arguments = parser.parse_args()
    folder = os.path.abspath(arguments.folder)
    os.makedirs(folder, exist_ok=True)
    print(__doc__.split("\n\n", maxsplit=1)[0])
    began = time.monotonic()
    tool("qemu-system-x86_64", "qemu-system-x86")
    kernel, version = fetch_kernel(folder)
    build_initramfs(folder, os.path.abspath(arguments.bin), version)
    prepared = time.monotonic()
    run_guests(folder, kernel)
    guests = [Guest(folder, 1), Guest(folder, 2)]
    failed = judge(*guests)
    print(f"prepared in {prepared - began:.0f} s, ran {time.monotonic() - prepared:.0f} s; "
          f"consoles in {folder}")
    if failed:
        for number, guest in enumerate(guests, 1):
            print(f"---- guest {number}\n" + "\n".join(guest.console.splitlines()[-150:]))
        print(f"roce: {failed} FAILED")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
