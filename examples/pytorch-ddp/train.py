# SPDX-License-Identifier: MPL-2.0
"""Train a small model with PyTorch DDP as one member of a gang.

Everything that distributed training needs comes from the environment that
the task driver sets: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for
torch.distributed, GANG_GENERATION and GANG_CHECKPOINT_DIR for resuming. The
program prints one JSON object a line, so that people and programs can follow.
It exits 0 only where its own checks hold: the all-reduce gives the right sum,
the loss falls, and the parameters end equal on all ranks.
"""

import argparse
import hashlib
import json
import os
import signal
import socket
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

INPUTS = 16
stop_asked = False


def say(event, **fields):
    """Print one event as a line of JSON; one write, so that lines never mix."""
    line = {"event": event, "rank": int(os.environ["RANK"]),
            "generation": int(os.environ.get("GANG_GENERATION", "1")), **fields}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def ask_stop(_signum, _frame):
    global stop_asked
    stop_asked = True


def check_all_reduce(rank, world):
    """Sum (rank + 1) * [1, 2, 3, 4] over all ranks and compare with the closed form."""
    ramp = torch.tensor([1.0, 2.0, 3.0, 4.0])
    value = ramp * (rank + 1)
    dist.all_reduce(value)
    expected = ramp * (world * (world + 1) / 2)
    ok = bool(torch.equal(value, expected))
    say("allreduce", sum=value.tolist(), expected=expected.tolist(), ok=ok)
    if not ok:
        raise SystemExit("all-reduce: got %s, expected %s" % (value.tolist(), expected.tolist()))


def batch(rank, step, size):
    """The same examples for the same rank and step, whatever was restarted meanwhile."""
    source = torch.Generator().manual_seed(1_000_003 * step + rank)
    x = torch.randn(size, INPUTS, generator=source)
    teacher = torch.linspace(-1.0, 1.0, INPUTS)
    return x, torch.tanh(x @ teacher).unsqueeze(1)


def digest(model):
    """SHA-256 over all parameters, bit for bit."""
    h = hashlib.sha256()
    for parameter in model.parameters():
        h.update(parameter.detach().contiguous().numpy().tobytes())
    return h.hexdigest()[:16]


def save(directory, state):
    """Write the checkpoint whole or not at all: a new file, synced, then renamed over the old."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "latest.pt")
    partial = path + ".partial"
    with open(partial, "wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(partial, path)
    say("checkpoint", step=state["step"])


def load(directory, rank):
    """Rank 0 reads the checkpoint and hands it to the others: its disk decides for all."""
    state = [None]
    path = os.path.join(directory, "latest.pt") if directory else ""
    if rank == 0 and path and os.path.exists(path):
        state = [torch.load(path)]
    dist.broadcast_object_list(state, src=0)
    return state[0]


def train(args):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    directory = os.environ.get("GANG_CHECKPOINT_DIR", "")
    say("start", world=world, pid=os.getpid(), host=socket.gethostname(),
        node_rank=int(os.environ.get("NODE_RANK", rank)), address=os.environ.get("NODE_ADDR", ""),
        master="%s:%s" % (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]),
        gpus=[g for g in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if g])
    dist.init_process_group("gloo", init_method="env://")
    check_all_reduce(rank, world)

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(INPUTS, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step, first_loss, loss = 0, None, None
    state = load(directory, rank)
    if state is not None:
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, first_loss, loss = state["step"], state["first_loss"], state["loss"]
        say("resume", step=step)

    while step < args.steps:
        x, y = batch(rank, step, args.batch)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        # The mean over ranks, with the wish to stop: all ranks leave the loop at the same step.
        both = torch.tensor([loss.item() / world, float(stop_asked)])
        dist.all_reduce(both)
        loss, stopping = both[0].item(), both[1].item() > 0
        if first_loss is None:
            first_loss = loss
        if step % args.report == 0 or step == args.steps:
            say("step", step=step, loss=round(loss, 6))
        if directory and rank == 0 and (step % args.checkpoint == 0 or stopping):
            save(directory, {"step": step, "first_loss": first_loss, "loss": loss,
                             "model": model.module.state_dict(), "optimizer": optimizer.state_dict()})
        if stopping:
            say("stopped", step=step)
            return 0
        time.sleep(args.step_seconds)

    digests = [None] * world
    dist.all_gather_object(digests, digest(model))
    equal = len(set(digests)) == 1
    falls = loss < first_loss
    say("result", step=step, first_loss=first_loss, last_loss=loss, digest=digests[rank],
        parameters_equal=equal, loss_falls=falls, ok=equal and falls)
    leave(rank, world)
    return 0 if equal and falls else 1


def leave(rank, world):
    """Rank 0 leaves last: it serves the store that the others still ask."""
    store = dist.distributed_c10d._get_default_store()
    store.set("left/%d" % rank, "yes")
    if rank == 0:
        store.wait(["left/%d" % r for r in range(world)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="steps to train (60)")
    parser.add_argument("--batch", type=int, default=64, help="examples per rank and step (64)")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="pause after each step, to stretch the run")
    parser.add_argument("--checkpoint", type=int, default=10, help="steps between checkpoints (10)")
    parser.add_argument("--report", type=int, default=5, help="steps between reports (5)")
    args = parser.parse_args()
    for name in ("steps", "batch", "checkpoint", "report"):
        if getattr(args, name) < 1:
            parser.error("--%s: %d: allowed is 1 and more" % (name, getattr(args, name)))
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        parser.error("not started as a member of a gang: %s not set" % ", ".join(missing))
    signal.signal(signal.SIGTERM, ask_stop)
    torch.set_num_threads(1)
    return train(args)


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: gloo's thread can spin for ever at the interpreter's end
    # when a peer has gone first.
    os._exit(code)
