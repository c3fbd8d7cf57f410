"""Writes tests/golden/fused.npz: what ONNX Runtime computes for the nodes of tests/fused_cases.py.

    python tests/golden/make_fused.py

Needs onnxruntime; the tests do not.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))
import fused_cases

if __name__ == "__main__":
    options, arrays, bad = onnxruntime.SessionOptions(), {}, []
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    for label, case in fused_cases.cases().items():
        model, feeds = fused_cases.model(case)
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
            found = session.run(None, feeds)
        except Exception as error:
            bad.append(f"{label}: {str(error)[:300]}")
            continue
        for name, value in zip([o.name for o in session.get_outputs()], found, strict=True):
            arrays[f"{label}/{name}"] = value
    if bad:
        raise SystemExit("\n".join(bad))
    file = Path(__file__).parent / "fused.npz"
    meta = json.dumps({"onnxruntime": onnxruntime.__version__})
    np.savez_compressed(file, meta=np.array(meta), **arrays)
    print(f"{file.name}: {len(fused_cases.cases())} cases, {file.stat().st_size / 1024:.0f} KiB")
