# SPDX-License-Identifier: Apache-2.0
"""One load by one loader in a fresh process, for load_peers.py: prints what it took as one JSON object.

Every tensor is in memory before the clock stops: of a mapped file, one byte of each page was looked at. Imports are done before
the clock starts.
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
RAW_PIECE = 8 << 20
RAW_THREADS = 4


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


def safetensors_get(files):
    from safetensors import safe_open

    total, kept = 0, []
    for path in files:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        total += touch(tensors, path)
        kept.append(tensors)
    return total, kept


def safetensors_load_file(files):
    from safetensors.torch import load_file

    total, kept = 0, []
    for path in files:
        tensors = load_file(path)
        total += touch(tensors, path)
        kept.append(tensors)
    return total, kept


def fastsafetensors_nogds(files):
    from fastsafetensors import SafeTensorsFileLoader

    loader = SafeTensorsFileLoader(pg=None, device="cpu", nogds=True)
    loader.add_filenames({0: files})
    buffers = loader.copy_files_to_device()
    tensors = {name: buffers.get_tensor(name) for name in loader.get_keys()}
    return size_of(tensors)[0], (tensors, buffers, loader)


def runai_streamer(files):
    from runai_model_streamer import SafetensorsStreamer

    tensors = {}
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files)
        for name, tensor in streamer.get_tensors():
            tensors[name] = tensor
    return size_of(tensors)[0], tensors


def raw_direct(files):
    """What the drive gives: the files' whole blocks past the page cache, in large pieces into a buffer that is used again."""
    pieces = []
    for path in files:
        pieces += [(path, at) for at in range(0, os.path.getsize(path), RAW_PIECE)]
    total, failures, lock = [0], [], threading.Lock()

    def work(mine):
        buffer = mmap.mmap(-1, RAW_PIECE)
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
    "runai streamer": (runai_streamer, ["torch", "runai_model_streamer"]),
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


def main():
    name, files = sys.argv[1], sys.argv[2:]
    load, modules = LOADERS[name]
    for module in modules:
        __import__(module)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")  # the peak starts anew
    before, cpu, start = memory("VmRSS"), cpu_seconds(), time.perf_counter()
    total, kept = load(files)
    seconds = time.perf_counter() - start
    result = {"seconds": seconds, "bytes": total, "cpu_seconds": cpu_seconds() - cpu,
              "peak_bytes": max(0, memory("VmHWM") - before), "holds_weights": kept is not None}
    print(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # nothing of the loaders' own endings is measured


if __name__ == "__main__":
    main()
