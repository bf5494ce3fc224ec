# SPDX-License-Identifier: MPL-2.0
"""Time PyTorch's own dynamic rendezvous (c10d) with N nodes on this machine.

All nodes but the last join first; the time runs from the last one's joining
until every node has its rank. Prints {"nodes": N, "seconds": S}.
"""

import json
import multiprocessing
import socket
import sys
import time

from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler


def join(node, nodes, port, go, answers):
    parameters = RendezvousParameters(backend="c10d", endpoint="127.0.0.1:%d" % port, run_id="bench",
                                      min_nodes=nodes, max_nodes=nodes, is_host=node == 0, timeout=120)
    backend, store = create_backend(parameters)
    handler = create_handler(store, backend, parameters)
    answers.put(("ready", node, 0.0))
    if node == nodes - 1:
        go.wait()
    began = time.monotonic()
    _, rank, world = handler.next_rendezvous()
    assert world == nodes, world
    answers.put(("done", began, time.monotonic()))
    go.wait()  # the store's host must not go first
    time.sleep(1)


def main():
    nodes = int(sys.argv[1])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("fork")
    go, answers = context.Event(), context.Queue()
    children = [context.Process(target=join, args=(node, nodes, port, go, answers), daemon=True) for node in range(nodes)]
    for child in children:
        child.start()
    for _ in range(nodes):
        assert answers.get(timeout=120)[0] == "ready"
    time.sleep(2)  # the others join meanwhile
    go.set()
    began, ended = 0.0, 0.0
    for _ in range(nodes):
        _, start, end = answers.get(timeout=120)
        began, ended = max(began, start), max(ended, end)
    print(json.dumps({"nodes": nodes, "seconds": ended - began}))
    for child in children:
        child.kill()


main()
