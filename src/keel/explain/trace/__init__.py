"""`keel trace`: every tensor of a text, from token ids to output.

`model_tracing` is where to start: it chooses how a model is run. The names of the modules say what they have:

- `*_tracing`: a network is run on `trace_inputs`, and the steps of the trace are made (an encoder, a task's head,
  decoding);
- `*_recording`: which modules of a network are watched, by `tensor_recorder`, and what is recorded of them;
- `*_kinds`: name, axes, meaning and formula of each tensor;
- `tensor_trace`: the result; `tensor_picture`: the small pictures in it.
"""
