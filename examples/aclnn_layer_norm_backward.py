"""A complete host program for aclnnLayerNormBackward, as one writes it for an NPU; it runs on any machine.

    python examples/aclnn_layer_norm_backward.py

The values are those of the interface's own document. Its mean is not the mean of input: nothing is recomputed.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from lngrad_ascend.acl import (
    ACL_FLOAT,
    ACL_FORMAT_ND,
    ACL_MEM_MALLOC_HUGE_FIRST,
    ACL_MEMCPY_DEVICE_TO_HOST,
    ACL_MEMCPY_HOST_TO_DEVICE,
    aclCreateBoolArray,
    aclCreateIntArray,
    aclCreateTensor,
    aclDestroyBoolArray,
    aclDestroyIntArray,
    aclDestroyTensor,
    aclFinalize,
    aclGetRecentErrMsg,
    aclInit,
    aclrtCreateStream,
    aclrtDestroyStream,
    aclrtFree,
    aclrtMalloc,
    aclrtMemcpy,
    aclrtResetDevice,
    aclrtSetDevice,
    aclrtSynchronizeStream,
)
from lngrad_ascend.aclnn import aclnnLayerNormBackward, aclnnLayerNormBackwardGetWorkspaceSize

INPUTS = {
    "gradOut": [[2, 3], [4, 5]],
    "input": [[2, 3], [4, 5]],
    "mean": [[2], [3]],
    "rstd": [[4], [5]],
    "weight": [1, 1],
    "bias": [0, 0],
}
EXPECTED = {
    "gradInput": [[-2, -94], [-877.5, -1747.5]],
    "gradWeight": [20, 62],
    "gradBias": [6, 8],
}


def checked(ret: int) -> None:
    """Stop at the first status that is not success."""
    if ret != 0:
        raise SystemExit(f"status {ret}: {aclGetRecentErrMsg()}")


def to_device(values: Any) -> tuple[Any, int]:
    """A tensor on the device with these values. Returns (tensor, address)."""
    host = np.array(values, np.float32)
    address, ret = aclrtMalloc(host.nbytes, ACL_MEM_MALLOC_HUGE_FIRST)
    checked(ret)
    checked(aclrtMemcpy(address, host.nbytes, host, host.nbytes, ACL_MEMCPY_HOST_TO_DEVICE))
    tensor = aclCreateTensor(host.shape, ACL_FLOAT, None, 0, ACL_FORMAT_ND, host.shape, address)
    if tensor is None:
        raise SystemExit(aclGetRecentErrMsg())
    return tensor, address


def main() -> int:
    # 1. Initialise
    checked(aclInit(None))
    checked(aclrtSetDevice(0))
    stream, ret = aclrtCreateStream()
    checked(ret)

    # 2. Tensors and arrays
    inputs = {name: to_device(values) for name, values in INPUTS.items()}
    outputs = {name: to_device(np.zeros_like(values, np.float32)) for name, values in EXPECTED.items()}
    tensors = {name: tensor for name, (tensor, _) in (inputs | outputs).items()}
    normalized_shape, output_mask = aclCreateIntArray([2]), aclCreateBoolArray([True, True, True])

    # 3. First phase: check, plan, and tell the workspace's size
    workspace_size, executor, ret = aclnnLayerNormBackwardGetWorkspaceSize(
        tensors["gradOut"],
        tensors["input"],
        normalized_shape,
        tensors["mean"],
        tensors["rstd"],
        tensors["weight"],
        tensors["bias"],
        output_mask,
        tensors["gradInput"],
        tensors["gradWeight"],
        tensors["gradBias"],
    )
    checked(ret)
    workspace = None
    if workspace_size > 0:
        workspace, ret = aclrtMalloc(workspace_size, ACL_MEM_MALLOC_HUGE_FIRST)
        checked(ret)

    # 4. Second phase, and wait for it
    checked(aclnnLayerNormBackward(workspace, workspace_size, executor, stream))
    checked(aclrtSynchronizeStream(stream))

    # 5. Copy the results back
    good = True
    for name, expected in EXPECTED.items():
        result = np.empty_like(expected, np.float32)
        _, address = outputs[name]
        checked(aclrtMemcpy(result, result.nbytes, address, result.nbytes, ACL_MEMCPY_DEVICE_TO_HOST))
        print(f"{name} {result.tolist()}")
        good = good and result.tolist() == expected  # every value is exact in float32

    # 6. Destroy, free, finalise
    for tensor in tensors.values():
        checked(aclDestroyTensor(tensor))
    checked(aclDestroyIntArray(normalized_shape))
    checked(aclDestroyBoolArray(output_mask))
    for _, address in (inputs | outputs).values():
        checked(aclrtFree(address))
    if workspace is not None:
        checked(aclrtFree(workspace))
    checked(aclrtDestroyStream(stream))
    checked(aclrtResetDevice(0))
    checked(aclFinalize())
    print("ok" if good else "wrong")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
