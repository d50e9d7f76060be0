"""Messages between ranks of torch.distributed, as groups of devices exchange them (distile_transport in group.h)."""

from __future__ import annotations

import ctypes
import datetime
import time

import torch
from torch import distributed
from torch.distributed import distributed_c10d

# Ranks' messages to each other have this number, where a backend tells them apart by one.
TAG = 0x6469
LOST = 1
"""What a transport answers that failed: any status but DISTILE_OK."""


class _Message(ctypes.Structure):
    _fields_ = [
        ("peer", ctypes.c_int32),
        ("reserved32", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
    ]


class _Messages(ctypes.Structure):
    _fields_ = [
        ("sends", ctypes.POINTER(_Message)),
        ("receives", ctypes.POINTER(_Message)),
        ("num_sends", ctypes.c_int32),
        ("num_receives", ctypes.c_int32),
        ("on_device", ctypes.c_int32),
        ("timeout_ms", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("cause", ctypes.c_void_p),
        ("cause_bytes", ctypes.c_int32),
        ("reserved32", ctypes.c_int32),
        ("reserved", ctypes.c_int64 * 4),
    ]


_Exchange = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Messages))

# How many transports each process group has made: ranks make them in the same order.
_made: dict[str, int] = {}
# Threads that nobody waits for any more may still use those that failed.
_lost: list[Transport] = []


class Transport:
    """Exchanges messages between the ranks of a process group, which all make one at the same time.

    What is in host memory travels by gloo over connections of its own, so that its failures are not the caller's: what
    ranks compare, and the pixels of CPUs. The pixels of GPUs travel by the NCCL of the process group.
    """

    def __init__(self, process_group: distributed.ProcessGroup, device: torch.device, timeout: float):
        self._device, self._pixels = device, process_group
        self.rank, self.ranks = distributed.get_rank(process_group), distributed.get_world_size(process_group)
        if self.rank < 0:
            raise ValueError("this process is no rank of the process group")
        self._peers = distributed.get_process_group_ranks(process_group)
        self.is_asynchronous = device.type == "cuda"
        if self.is_asynchronous:
            _check_nccl(process_group, device)
        name = process_group.group_name
        _made[name] = _made.get(name, 0) + 1
        store = distributed.PrefixStore(f"distile/{name}/{_made[name]}", distributed_c10d._get_default_store())
        limit = datetime.timedelta(seconds=timeout)
        self._host = distributed.ProcessGroupGloo(store, self.rank, self.ranks, limit)
        if self.is_asynchronous:
            with torch.cuda.device(device):
                # All ranks take part in the first call of NCCL, which connects them.
                distributed.all_reduce(torch.zeros(1, device=device), group=process_group)
                torch.cuda.synchronize(device)
        self.is_lost = False
        self._function = _Exchange(self._exchange)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value

    def keep(self) -> None:
        """Keeps what threads of a group that is lost may still use."""
        self.is_lost = True
        if self not in _lost:
            _lost.append(self)

    def _exchange(self, _user, pointer) -> int:
        messages = pointer.contents
        try:
            if messages.on_device and self._device.type == "cuda":
                self._exchange_on_gpu(messages)
            else:
                self._exchange_on_host(messages)
        except BaseException as error:  # None may leave it.
            self.is_lost = True
            # Cut anywhere, it stays text.
            text = f"{type(error).__name__}: {error}".encode("ascii", "replace").split(b"\n")[0]
            text = text[: messages.cause_bytes - 1]
            ctypes.memmove(messages.cause, text + b"\0", len(text) + 1)
            return LOST
        return 0

    def _exchange_on_host(self, messages: _Messages) -> None:
        deadline = time.monotonic() + messages.timeout_ms / 1000
        works = [self._host.recv([_host_bytes(one)], one.peer, TAG) for one in _received(messages)]
        works += [self._host.send([_host_bytes(one)], one.peer, TAG) for one in _sent(messages)]
        for work in works:
            left = max(0.001, deadline - time.monotonic())
            if not work.wait(datetime.timedelta(seconds=left)):
                raise RuntimeError("a message did not arrive")

    def _exchange_on_gpu(self, messages: _Messages) -> None:
        def operation(kind, one):
            return distributed.P2POp(
                kind, _device_bytes(one, self._device), self._peers[one.peer], group=self._pixels
            )

        with torch.cuda.device(self._device):
            with torch.cuda.stream(_stream_at(messages.stream, self._device)):
                operations = [operation(distributed.irecv, one) for one in _received(messages)]
                operations += [operation(distributed.isend, one) for one in _sent(messages)]
                for work in distributed.batch_isend_irecv(operations):
                    work.wait()  # Lets the stream wait, not this thread.


def _stream_at(address: int | None, device: torch.device) -> torch.cuda.Stream:
    """PyTorch's view of a CUstream. For 0, which is the default stream, ExternalStream would make a new one."""
    return torch.cuda.ExternalStream(address, device=device) if address else torch.cuda.default_stream(device)


def _check_nccl(process_group: distributed.ProcessGroup, device: torch.device) -> None:
    try:
        name = process_group._get_backend(device).name()
    except RuntimeError:
        name = "none"
    if name in ("none", "gloo"):
        raise ValueError(
            f"the process group's backend for GPUs is {name}, and pixels travel by nccl: "
            'torch.distributed.init_process_group("cpu:gloo,cuda:nccl")'
        )


def _received(messages: _Messages) -> list[_Message]:
    return messages.receives[: messages.num_receives] if messages.num_receives else []


def _sent(messages: _Messages) -> list[_Message]:
    return messages.sends[: messages.num_sends] if messages.num_sends else []


def _host_bytes(message: _Message) -> torch.Tensor:
    memory = (ctypes.c_char * message.bytes).from_address(message.data)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _device_bytes(message: _Message, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(_DeviceMemory(message.data, message.bytes), device=device)


class _DeviceMemory:
    """Memory of a GPU that is not PyTorch's."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2}
