"""The calls of RoboCache's operators in a compiled function, for tests of the operators themselves."""

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd


class Recorder(torch.fx.Interpreter):
    """Runs a graph and keeps the calls of RoboCache's operators, with their arguments."""

    calls: list

    def call_function(self, target, args, kwargs):
        if getattr(target, "namespace", None) == "robocache":
            self.calls.append((target, args))
        return super().call_function(target, args, kwargs)


def recorded(call):
    """The operator calls that a compiled function makes, forward and backward."""
    calls = []

    def compiler(graph, inputs):
        recorder = Recorder(graph)
        recorder.calls = calls
        return make_boxed_func(recorder.run)

    out = torch.compile(call, backend=aot_autograd(fw_compiler=compiler), fullgraph=True)()
    values = [x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor) and x.requires_grad]
    if values:
        torch.autograd.backward([x.sum() for x in values])
    return calls
