#!/usr/bin/env bash
# Checks beside the tests:
#   tools/lanes.sh faults       every call of the driver fails once, at every position there is time for, and grilly is
#                               interrupted at thousands of random points (GRILLY_FAULT_SECONDS, default 90, for the
#                               faults of both runtimes; GRILLY_INTERRUPT_SECONDS, default 25)
# And those that need more than this machine's own drivers, run inside the folder that tools/lab makes:
#   tools/lanes.sh validation   the device tests under the newest Vulkan validation layers, synchronization validation
#                               included, on the newest CPU driver; any message fails
#   tools/lanes.sh devices      every shader compiled by the drivers of 23 GPUs that are not here, each pipeline for a third
#                               of a vendor's chips; a refusal, or spilled registers, fails
#   tools/lanes.sh              all
# Where root or debootstrap is missing the last two are not run: that is said, and the status is 0
# (GRILLY_REQUIRE_LANES=1: 1).
# GRILLY_UNTIL                seconds since 1970: no lane, no test under validation and no pipeline for a device begins after
#                             them, nor faults in the five minutes before; what was left out is said as above
# GRILLY_DEVICES              a pattern of names of devices: these only, and every pipeline for each of them; "." for all,
#                             after a change to shaders (default: all but qualcomm-adreno640 and -adreno650, which are as the
#                             630 and nearly as the 660)
# GRILLY_TURN                 a number: a third of the devices, each with a third of the pipelines (nine numbers in a row have
#                             every device and every pipeline), and other cases of the tests under validation
# GRILLY_VALIDATION_TESTS     what pytest runs under validation (default: tests --devices-only --every 24, less those of
#                             commands, of documents and of kernels that are not shipped, in up to four processes)
# GRILLY_VALIDATION_EVERY     of each test's cases every so many (default 24; 1 for all of them, which takes an hour or two)
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
python=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}
libraries=/usr/lib/x86_64-linux-gnu
drivers=/usr/share/vulkan/icd.d

not_run() {
  printf '\n*** NOT RUN: %s\n*** Reason: %s\n\n' "$1" "$2"
  [[ ${GRILLY_REQUIRE_LANES:-} != 1 ]]
}

late() { # late [SECONDS]: whether the time is over, or will be in so many seconds
  [[ -n ${GRILLY_UNTIL:-} ]] && (($(date +%s) + ${1:-0} >= GRILLY_UNTIL))
}
is_over="the time was over (GRILLY_UNTIL)"
deadline=(${GRILLY_UNTIL:+--until "$GRILLY_UNTIL"})
# How many tests or pipelines these logs say there was no time for.
unbegun() { cat "$@" 2>/dev/null | awk '{ for (i = 4; i <= NF; i++) if ($(i - 1) == "did" && $i == "not") n += $(i - 3) } END { print n + 0 }'; }

# The stand-ins, by the variable that chooses the chip; the slowest compilers first.
devices() {
  local name chip
  while read -r name chip; do
    echo "$name NOUVEAU_CHIPSET=$chip LD_PRELOAD=$libraries/libnouveau_noop_drm_shim.so VK_DRIVER_FILES=$drivers/nouveau_icd.json"
  done <<<"nvidia-ampere-nvk 174
nvidia-ada-nvk 192"
  while read -r name chip; do
    echo "$name AMDGPU_GPU_ID=$chip LD_PRELOAD=$libraries/libamdgpu_noop_drm_shim.so VK_DRIVER_FILES=$drivers/radeon_icd.json"
  done <<<"amd-gcn4-rx580 polaris10
amd-gcn5-vega20 vega20
amd-rdna1-rx5700xt navi10
amd-rdna2-rx6800 navi21
amd-rdna3-rx7900xtx navi31
amd-rdna3.5-890m strix1
amd-rdna4-rx9070xt gfx1201"
  while read -r name chip; do
    echo "$name I915_STANDIN=$chip LD_PRELOAD=/grilly/libi915_standin.so VK_DRIVER_FILES=$drivers/intel_icd.json"
  done <<<"intel-gen9-hd530 skylake
intel-gen11-icelake ice-lake
intel-xe-tigerlake tiger-lake
intel-xe-uhd770 alder-lake
intel-arc-a770 arc-a770
intel-xe-meteorlake meteor-lake
intel-xe2-lunarlake lunar-lake
intel-arc-b580 arc-b580
intel-xe3-pantherlake panther-lake"
  for chip in 630 660 740 750; do
    echo "qualcomm-adreno$chip FD_GPU_ID=$chip LD_PRELOAD=$libraries/libfreedreno_noop_drm_shim.so VK_DRIVER_FILES=$drivers/freedreno_icd.json"
  done
  # Chips that Debian's stand-in does not know. A colon separates libraries, as a line's words are variables.
  [[ -z ${GRILLY_DEVICES:-} ]] || for chip in 640 650; do
    echo "qualcomm-adreno$chip ADRENO_STANDIN=$chip FD_GPU_ID=660 LD_PRELOAD=/grilly/libadreno_standin.so:$libraries/libfreedreno_noop_drm_shim.so VK_DRIVER_FILES=$drivers/freedreno_icd.json"
  done
  echo "apple-m1-honeykrisp LD_PRELOAD=$libraries/libasahi_noop_drm_shim.so VK_DRIVER_FILES=$drivers/asahi_icd.json"
}

# Puts the checkout, its compiled shaders and the vulkan package (plain Python) into the lab.
fill() {
  local package
  package=$("$python" -c 'import importlib.util as u; print(u.find_spec("vulkan").submodule_search_locations[0])' 2>/dev/null) \
    || { echo "the Python package vulkan is missing from $python; tools/test sets one up"; exit 1; }
  rm -rf "$lab/grilly"; mkdir -p "$lab/grilly/site"
  tar -c --exclude=__pycache__ pyproject.toml README.md CHANGELOG.md mkdocs.yml containers grilly_py tests tools shaders docs | tar -x -C "$lab/grilly"
  # There is no compiler in the lab.
  "$python" tools/compile_shaders.py --pack "$lab/grilly/shaders-packed"
  tar -c --exclude=__pycache__ -C "$(dirname "$package")" vulkan | tar -x -C "$lab/grilly/site"
}

# Debian has no stand-in for Intel's kernel driver, and knows few Adrenos; ours are compiled where they are used.
build_stand_ins() {
  local name
  for name in i915 adreno; do
    chroot "$lab" gcc -O1 -shared -fPIC -o "/grilly/lib${name}_standin.so" "/grilly/tools/standins/$name.c" -ldl
  done
}

inside() { # inside COMMAND...: run it in the lab, in the checkout
  chroot "$lab" env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONPATH=/grilly/site:/grilly/grilly_py \
    PYTHONDONTWRITEBYTECODE=1 GRILLY_CACHE_DIR=/tmp/grilly-cache GRILLY_SHADERS=/grilly/shaders-packed sh -c 'cd /grilly && exec "$@"' sh "$@"
}

validate_part() { # validate_part PART PARTS COMMAND...: the tests of every PARTS-th file from PART on, after COMMAND
  local part=$1 parts=$2 tests; shift 2
  if [[ -n ${GRILLY_VALIDATION_TESTS:-} ]]; then
    read -ra tests <<<"$GRILLY_VALIDATION_TESTS"
  else
    # Commands and documents have no need of it, nor has what no device gets.
    mapfile -t tests < <(find tests -name 'test_*.py' -printf '%s %p\n' | sort -rn | cut -d' ' -f2 |
      grep -vE '/test_(cli|pages|examples|adding_[a-z_]+|element_orders|emulated)\.py$' | awk -v part="$part" -v parts="$parts" 'NR % parts == part')
    tests+=(--devices-only --every "${GRILLY_VALIDATION_EVERY:-24}" --turn "${GRILLY_TURN:-0}")
  fi
  inside "$@" python3 -m pytest -q -s -p no:cacheprovider --durations 10 -k "not kompute" "${deadline[@]}" "${tests[@]}"
}

validation() {
  local log=$lab/grilly/validation.log fault parts part left status=0
  # A process a processor, up to four; each takes every n-th file, the longest first.
  parts=$(nproc); parts=$((parts < 4 ? parts : 4))
  [[ -z ${GRILLY_VALIDATION_TESTS:-} ]] || parts=1
  # The layer writes to standard output: a log file would be begun anew by every instance.
  cat >"$lab/grilly/vk_layer_settings.txt" <<'SETTINGS'
khronos_validation.validate_sync = true
khronos_validation.syncval_shader_accesses_heuristic = true
khronos_validation.report_flags = error,warn
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.enable_message_limit = false
SETTINGS
  local layers=(env VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation VK_LAYER_SETTINGS_PATH=/grilly/vk_layer_settings.txt
    VK_DRIVER_FILES=$drivers/lvp_icd.json)
  local message='^Validation (Error|Warning)|VUID-|SYNC-HAZARD'
  # First see that the layers speak up: about a call that is wrong, and about a barrier that is missing.
  for fault in call:VUID-VkBufferCreateInfo-size barrier:SYNC-HAZARD; do
    inside "${layers[@]}" python3 tools/validation_faults.py "${fault%%:*}" >"$log" 2>&1
    grep -q "${fault##*:}" "$log" || { tail -5 "$log"; echo "the layers missed the deliberate fault: $fault"; return 1; }
  done
  for ((part = 0; part < parts; part++)); do
    validate_part "$part" "$parts" "${layers[@]}" >"$log.$part" 2>&1 &
  done
  for ((part = 0; part < parts; part++)); do wait -n || status=1; done
  cat "$log".[0-9] >"$log"
  if grep -qE "$message" "$log"; then
    echo "$(grep -cE '^Validation (Error|Warning)' "$log" || true) messages of the validation layers; by kind, and the first:"
    grep -oE 'VUID-[A-Za-z0-9-]+|SYNC-HAZARD[A-Z-]*' "$log" | sort | uniq -c | sort -rn | head -10
    grep -m1 -A12 -E "$message" "$log" | cut -c1-2000
    return 1
  fi
  for ((part = 0; part < parts; part++)); do tail -n "$((status ? 60 : 1))" "$log.$part"; done
  ((status == 0)) || return 1
  left=$(unbegun "$log".[0-9])
  ((left == 0)) || not_run "validation: $left tests" "$is_over" || status=1
  echo "validation: no messages ($(chroot "$lab" dpkg-query -W -f '${Package} ${Version}' vulkan-validationlayers), $(
    chroot "$lab" dpkg-query -W -f '${Package} ${Version}' mesa-vulkan-drivers))"
  return $status
}

compile_one() { # compile_one K/N NAME VARIABLE=VALUE...: the K-th of N parts of the pipelines
  local part=$1 name=$2; shift 2
  inside env "$@" MESA_SHADER_CACHE_DISABLE=1 python3 tools/compile_on_devices.py "$name" --part "$part" "${deadline[@]}" \
    --report "reports/$name.json" >"$lab/grilly/reports/$name.log" 2>&1
  local status=$?
  cat "$lab/grilly/reports/$name.log"
  return $status
}

compile_all() {
  local line part turn=0 number=0 failed=0 running=0 left=0 pipelines
  mkdir -p "$lab/grilly/reports"
  build_stand_ins
  while read -r line; do
    # Of each vendor every part is compiled, for one chip or another. A chip that is asked for compiles all.
    case $line in
      nvidia-*) part=$((turn++ % 2 + 1))/2 ;;
      apple-*) part=1/1 ;;
      *) part=$((turn++ % 3 + 1))/3 ;;
    esac
    [[ -z ${GRILLY_DEVICES:-} ]] || part=1/1
    if [[ -n ${GRILLY_TURN:-} ]]; then
      number=$((number + 1))
      (((number + GRILLY_TURN) % 3 == 0)) || continue
      part=$(((number / 3 + GRILLY_TURN / 3) % 3 + 1))/3
    fi
    if late; then left=$((left + 1)); continue; fi
    # shellcheck disable=SC2086  # the line is a name and variables
    compile_one "$part" $line & running=$((running + 1))
    if ((running >= $(nproc))); then wait -n || failed=1; running=$((running - 1)); fi
  done < <(devices | grep -E "^[^ ]*(${GRILLY_DEVICES:-})")
  while ((running > 0)); do wait -n || failed=1; running=$((running - 1)); done
  local reports; reports=$(find "$lab/grilly/reports" -name '*.json' | wc -l)
  echo "devices: $reports of $(devices | grep -cE "^[^ ]*(${GRILLY_DEVICES:-})") drivers compiled what they could take"
  pipelines=$(unbegun "$lab"/grilly/reports/*.log)
  ((left + pipelines == 0)) || not_run "devices: $left drivers, and $pipelines pipelines of others" "$is_over" || failed=1
  ((failed == 0))
}

faults() { # with the runtimes that can be opened here; GRILLY_REQUIRE_RUNTIMES names those that must
  local seconds=${GRILLY_FAULT_SECONDS:-90} interrupts=${GRILLY_INTERRUPT_SECONDS:-25} status=0 runtimes=vulkan
  if "$python" -c 'import kp' 2>/dev/null; then runtimes+=" kompute"; fi
  "$python" tools/inject_faults.py --seconds $((seconds * 4 / 5)) || status=1
  if [[ $runtimes == *kompute* ]]; then "$python" tools/inject_faults.py --seconds $((seconds / 5)) --runtime kompute || status=1; fi
  # shellcheck disable=SC2086  # one or two names
  "$python" tools/interrupts.py --seconds "$interrupts" --runtime $runtimes || status=1
  return $status
}

part() { echo "== lane: $1 (after $((SECONDS / 60)) min)"; }

known=(faults validation devices)
lanes=("$@"); (($#)) || lanes=("${known[@]}")
for lane in "${lanes[@]}"; do
  [[ " ${known[*]} " == *" $lane "* ]] || { echo "unknown lane '$lane'; there are: ${known[*]}" >&2; exit 2; }
done
status=0
rest=()
for lane in "${lanes[@]}"; do
  if [[ $lane != faults ]]; then rest+=("$lane"); continue; fi
  # On a slow machine its fewest positions take five minutes.
  if late 300; then not_run faults "$is_over" || status=1; continue; fi
  part faults
  faults || { echo "faults: FAILED"; status=1; }
done
lanes=("${rest[@]}"); ((${#lanes[@]})) || exit $status
if late; then not_run "${lanes[*]}" "$is_over" || status=1; exit $status; fi
lab=$(tools/lab 2>/tmp/grilly-lab-reason.$$) || {
  reason=$(tail -1 /tmp/grilly-lab-reason.$$); rm -f /tmp/grilly-lab-reason.$$
  not_run "${lanes[*]} (newest validation layers; stand-ins for 23 GPUs)" "$reason" || status=1; exit $status; }
rm -f /tmp/grilly-lab-reason.$$
exec 9>"$lab.lock"; flock 9  # one checkout at a time
fill
for lane in "${lanes[@]}"; do
  if late; then not_run "$lane" "$is_over" || status=1; continue; fi
  part "$lane"
  case $lane in
    validation) validation || { echo "validation: FAILED"; status=1; } ;;
    devices) compile_all || { echo "devices: FAILED"; status=1; } ;;
  esac
done
exit $status
