# Sourced by tools/demo and tools/test, in the checkout's root: packages of the system, and a Python environment in .venv.
set -euo pipefail

# Installs the Debian packages that are missing. Needs root, or sudo, only if some are.
packages() {
  local missing=() package
  command -v dpkg-query >/dev/null || { echo "This script knows Debian and Ubuntu only. Install what corresponds to: $*" >&2; return 1; }
  for package; do
    [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == *" installed" ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get)
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || { echo "Packages are missing; as root: apt-get install ${missing[*]}" >&2; return 1; }
    install=(sudo "${install[@]}")
  fi
  echo "Installing ${missing[*]}"
  "${install[@]}" -qq update && "${install[@]}" -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
}

# environment NAME REQUIREMENT...: a virtual environment in .venv with grilly (editable) and these requirements. A
# requirement that begins with + is installed without its dependencies. Done once, until pyproject.toml changes.
environment() {
  local name=$1 requirement plain=() alone=(); shift
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "grilly needs Python 3.10 or newer" >&2; return 1; }
  [[ -x .venv/bin/pip ]] || python3 -m venv .venv
  local stamp=.venv/.grilly-$name
  if [[ -f $stamp && ! pyproject.toml -nt $stamp && $(<"$stamp") == "$*" ]]; then return 0; fi
  echo "Installing Python packages into .venv"
  for requirement; do
    case $requirement in +*) alone+=("${requirement#+}") ;; *) plain+=("$requirement") ;; esac
  done
  .venv/bin/pip install -q --disable-pip-version-check "${plain[@]}"
  ((${#alone[@]} == 0)) || .venv/bin/pip install -q --disable-pip-version-check --no-deps "${alone[@]}"
  printf '%s\n' "$*" >"$stamp"
}

# Kompute's Python package, from source (a minute; pip keeps the wheel it built). The options make it use the system's
# headers and libraries in place of copies that it would fetch.
kompute() {
  if .venv/bin/python -c 'import kp' 2>/dev/null; then return 0; fi
  packages g++ cmake make libvulkan-dev libfmt-dev pybind11-dev python3-dev || return 1
  echo "Building Kompute (kp 0.9.0)"
  # Nothing else in PATH: its CMake files take the first python3.x they find, be it a version manager's stub.
  PATH="$PWD/.venv/bin:/usr/local/bin:/usr/bin:/bin" KOMPUTE_OPT_USE_BUILT_IN_VULKAN_HEADER=OFF KOMPUTE_OPT_USE_BUILT_IN_FMT=OFF \
    KOMPUTE_OPT_USE_BUILT_IN_PYBIND11=OFF KOMPUTE_OPT_INSTALL=OFF KOMPUTE_OPT_DISABLE_VK_DEBUG_LAYERS=ON \
    KOMPUTE_PYTHON_NUM_PARALLEL_THREADS=$(nproc) \
    .venv/bin/pip install -q --disable-pip-version-check --use-pep517 --no-deps kp==0.9.0
  .venv/bin/python -c 'import kp'
}

# PyTorch without the CUDA packages that its own for Linux asks for: 0.6 GB, a minute. Needs environment before it.
pytorch() {
  if .venv/bin/python -c 'import torch' 2>/dev/null; then return 0; fi
  packages gcc binutils || return 1
  echo "Installing PyTorch for the CPU"
  local install=(.venv/bin/pip install -q --disable-pip-version-check)
  # Packages before it, or pip would name all that PyTorch lacks.
  if "${install[@]}" filelock typing-extensions 'setuptools>=77.0.3' sympy networkx jinja2 fsspec &&
    "${install[@]}" --no-deps torch && .venv/bin/python tools/without_cuda.py && .venv/bin/python -c 'import torch'; then
    return 0
  fi
  .venv/bin/pip uninstall -q -y torch
  return 1
}

# The oldest transformers 5 with what it needs, in a folder that PYTHONPATH puts before .venv's own.
OLDEST_TRANSFORMERS=.venv/transformers-5.0.0
oldest_transformers() {
  if [[ -d $OLDEST_TRANSFORMERS ]]; then return 0; fi
  echo "Installing transformers 5.0.0 beside the newest"
  rm -rf "$OLDEST_TRANSFORMERS.part"
  # What pip says of packages outside of the folder does not concern it.
  .venv/bin/pip install -q --disable-pip-version-check --target "$OLDEST_TRANSFORMERS.part" transformers==5.0.0 \
    2>"$OLDEST_TRANSFORMERS.log" ||
    { cat "$OLDEST_TRANSFORMERS.log" >&2; return 1; }
  mv "$OLDEST_TRANSFORMERS.part" "$OLDEST_TRANSFORMERS"
}
