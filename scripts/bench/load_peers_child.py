# SPDX-License-Identifier: Apache-2.0
"""One load by one loader in a fresh process, for load_peers.py: prints what it took as one JSON object.

Usage: load_peers_child.py LOADER DEVICE FILE...

Every tensor is in the device's memory before the clock stops: of a mapped file, one byte of each page was looked at. Imports are
done and the device is ready before the clock starts, which it does when a line comes on standard input after "ready" went out.
"""

import ctypes
import json
import mmap
import os
import resource
import sys
import threading
import time

PAGE = mmap.PAGESIZE
RAW_PIECE = 2 << 20
RAW_THREADS = 8

staging = {}  # what a loader says of the memory that bytes pass through


def size_of(tensors):
    """Bytes of all tensors, and the addresses that they lie between."""
    sizes = [(tensor.data_ptr(), tensor.numel() * tensor.element_size()) for tensor in tensors.values()]
    held = [(at, at + size) for at, size in sizes if size]
    begin, end = min((at for at, _ in held), default=0), max((to for _, to in held), default=0)
    return sum(size for _, size in sizes), begin, end


def touch(tensors, path):
    """Bytes of all tensors of one mapped file, of which every page is looked at."""
    import numpy as np

    total, begin, end = size_of(tensors)
    if end - begin > os.path.getsize(path):
        return total  # not mapped: every tensor has memory of its own, and was copied there
    np.frombuffer((ctypes.c_ubyte * (end - begin)).from_address(begin), np.uint8)[::PAGE].sum()
    return total


def safetensors_get(files, device):
    from safetensors import safe_open

    total, kept = 0, []
    for path in files:
        with safe_open(path, framework="pt", device=device) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        total += touch(tensors, path) if device == "cpu" else size_of(tensors)[0]
        kept.append(tensors)
    return total, kept


def safetensors_load_file(files, device):
    from safetensors.torch import load_file

    total, kept = 0, []
    for path in files:
        tensors = load_file(path, device=device)
        total += touch(tensors, path) if device == "cpu" else size_of(tensors)[0]
        kept.append(tensors)
    return total, kept


def fastsafetensors(files, device, nogds):
    from fastsafetensors import SafeTensorsFileLoader

    loader = SafeTensorsFileLoader(pg=None, device=device, nogds=nogds)
    loader.add_filenames({0: files})
    buffers = loader.copy_files_to_device()
    tensors = {name: buffers.get_tensor(name) for name in loader.get_keys()}
    return size_of(tensors)[0], (tensors, buffers, loader)


def fastsafetensors_nogds(files, device):
    return fastsafetensors(files, device, True)


def fastsafetensors_gds(files, device):
    return fastsafetensors(files, device, False)


def runai_streamer(files, device):
    from runai_model_streamer import SafetensorsStreamer

    tensors = {}
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files, device=device)
        for name, tensor in streamer.get_tensors():
            tensors[name] = tensor if device == "cpu" else tensor.to(device)
    return size_of(tensors)[0], tensors


def instanttensor(files, device):
    from instanttensor import safe_open

    tensors = {}
    with safe_open(files, framework="pt", device=device) as file:
        for name, tensor in file.tensors():
            tensors[name] = tensor
        staging["bytes"] = file.buffer_size  # on the device
    return size_of(tensors)[0], tensors


def raw_direct(files, _device):
    """What the drive gives: the files' whole blocks past the page cache, in large pieces into a buffer that is used again."""
    pieces = []
    for path in files:
        pieces += [(path, at) for at in range(0, os.path.getsize(path), RAW_PIECE)]
    total, failures, lock = [0], [], threading.Lock()

    def work(mine):
        # A huge page: into pages of 4 KiB, some virtual disks give half as much.
        buffer = memoryview(mmap.mmap(-1, 2 * RAW_PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        buffer.obj.madvise(mmap.MADV_HUGEPAGE)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % RAW_PIECE
        buffer = buffer[start:start + RAW_PIECE]
        opened = {}
        try:
            for path, at in mine:
                if path not in opened:
                    opened[path] = os.open(path, os.O_RDONLY | os.O_DIRECT)
                got = os.preadv(opened[path], [buffer], at)
                with lock:
                    total[0] += got
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(pieces[i::RAW_THREADS],)) for i in range(RAW_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return total[0], None


LOADERS = {
    "raw O_DIRECT": (raw_direct, []),
    "safetensors get_tensor": (safetensors_get, ["torch", "safetensors.torch"]),
    "safetensors load_file": (safetensors_load_file, ["torch", "safetensors.torch"]),
    "fastsafetensors nogds": (fastsafetensors_nogds, ["torch", "fastsafetensors"]),
    "fastsafetensors gds": (fastsafetensors_gds, ["torch", "fastsafetensors"]),
    "runai streamer": (runai_streamer, ["torch", "runai_model_streamer"]),
    "instanttensor": (instanttensor, ["torch", "instanttensor"]),
}


def memory(key):
    """Bytes of a line of /proc/self/status."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def prepare(device):
    """Makes the device ready; what waits for it, or None for the processor."""
    if device == "cpu":
        return None
    import torch

    torch.zeros(1, device=device)
    torch.cuda.synchronize()
    return torch.cuda.synchronize


def main():
    name, device, files = sys.argv[1], sys.argv[2], sys.argv[3:]
    load, modules = LOADERS[name]
    for module in modules:
        __import__(module)
    synchronize = prepare(device) if modules else None
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit("nobody said to start")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")  # the peak starts anew
    before, cpu, start = memory("VmRSS"), cpu_seconds(), time.perf_counter()
    total, kept = load(files, device)
    if synchronize:
        synchronize()
    seconds = time.perf_counter() - start
    result = {"seconds": seconds, "bytes": total, "cpu_seconds": cpu_seconds() - cpu,
              "peak_bytes": max(0, memory("VmHWM") - before), "holds_weights": kept is not None, "staging_bytes": staging.get("bytes")}
    print(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # nothing of the loaders' own endings is measured


if __name__ == "__main__":
    main()
