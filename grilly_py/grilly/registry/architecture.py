"""Recognises a GPU's architecture from what its driver reports."""

from __future__ import annotations

import re

from ..runtime.interface import DeviceInfo

_NVIDIA, _AMD, _INTEL, _APPLE, _QUALCOMM, _ARM = 0x10DE, 0x1002, 0x8086, 0x106B, 0x5143, 0x13B5

# PCI device ids, first to last inclusive, as in the PCI ID database. They settle what a marketing name leaves open.
_NVIDIA_IDS = (
    (0x0FC0, 0x12FF, "kepler"),
    (0x1340, 0x143F, "maxwell"),
    (0x15F0, 0x15FF, "pascal"),
    (0x1600, 0x17FF, "maxwell"),
    (0x1B00, 0x1D7F, "pascal"),
    (0x1D80, 0x1DFF, "volta"),
    (0x1E00, 0x1FFF, "turing"),
    (0x2080, 0x20FF, "ampere"),
    (0x2180, 0x21FF, "turing"),
    (0x2200, 0x22FF, "ampere"),
    (0x2300, 0x23FF, "hopper"),
    (0x2400, 0x25FF, "ampere"),
    (0x2680, 0x28FF, "ada"),
    (0x2900, 0x29FF, "blackwell"),
    (0x2B80, 0x2FFF, "blackwell"),
    (0x3180, 0x31FF, "blackwell"),
)
_AMD_IDS = (
    (0x1304, 0x131D, "gcn"),
    (0x15D8, 0x15DD, "gcn"),
    (0x15E7, 0x15E7, "gcn"),
    (0x1636, 0x1638, "gcn"),
    (0x164C, 0x164C, "gcn"),
    (0x163F, 0x163F, "rdna2"),
    (0x1435, 0x1435, "rdna2"),
    (0x1506, 0x1506, "rdna2"),
    (0x164D, 0x164E, "rdna2"),
    (0x1680, 0x1681, "rdna2"),
    (0x13C0, 0x13C0, "rdna2"),
    (0x15BF, 0x15C8, "rdna3"),
    (0x164F, 0x164F, "rdna3"),
    (0x1900, 0x1901, "rdna3"),
    (0x150E, 0x150E, "rdna3"),
    (0x1114, 0x1114, "rdna3"),
    (0x1586, 0x1586, "rdna3"),
    (0x6600, 0x6FFF, "gcn"),
    (0x7300, 0x730F, "gcn"),
    (0x7310, 0x7362, "rdna1"),
    (0x738C, 0x7390, "cdna"),
    (0x73A0, 0x73FF, "rdna2"),
    (0x7408, 0x7410, "cdna"),
    (0x7420, 0x743F, "rdna2"),
    (0x7440, 0x749F, "rdna3"),
    (0x74A0, 0x74BF, "cdna"),
    (0x7550, 0x759F, "rdna4"),
    (0x75A0, 0x75BF, "cdna"),
    (0x9830, 0x98FF, "gcn"),
)

# In the order in which they are tried: "RTX 6000 Ada" before the "Quadro RTX 6000", which is Turing.
_NVIDIA_NAMES = (
    (r"BLACKWELL|\bG?B[123]00\b|\bGB10\b|\bTHOR\b|RTX 50[5-9]0", "blackwell"),
    (r"\bGH200\b|\bH(20|100|200|800)\b", "hopper"),
    (r"\bADA\b|RTX 40[5-9]0|\bL(2|4|20|40)[SG]?\b", "ada"),
    (r"RTX 2050|RTX 30[5-9]0|RTX A\d{3,4}\b|\bA(2|10|10G|10M|16|30|30X|40|100|100X|800)\b|\bMX570|\bORIN\b", "ampere"),
    (r"QUADRO RTX|RTX 20[5-9]0|TITAN RTX|GTX 16\d\d|\bT4G?\b|\bT([4-6]00|550|1[02]00|2000)\b|\bMX(450|550)", "turing"),
    (r"\bV100|TITAN V\b|GV100|\bXAVIER\b", "volta"),
    (r"GTX 10\d\d|GT 10[13]0|\bP(4|6|40|100)\b|QUADRO (GP100|P\d{3,4})|\bP[456]\d\d\b|\bMX[123]\d\d", "pascal"),
    (r"GTX TITAN X", "maxwell"),
    (r"TITAN XP?\b", "pascal"),
    (r"GTX 9\d\d|GTX 75\d|\bM(4|6|10|40|60)\b|QUADRO M\d{3,4}|TEGRA X1", "maxwell"),
    (r"GTX [67]\d\d|GT [67]\d\d|\bK(10|20|40|80)\b|QUADRO K\d{3,4}|TEGRA K1", "kepler"),
)
_NVK_CHIPS = {
    "GK": "kepler",
    "GM": "maxwell",
    "GP": "pascal",
    "GV": "volta",
    "TU": "turing",
    "GA": "ampere",
    "GH": "hopper",
    "AD": "ada",
    "GB": "blackwell",
}
_RADV_CHIPS = (
    (r"GFX90[8A]|GFX9[45]\w|ARCTURUS|ALDEBARAN|MI[1-3]\d\d", "cdna"),
    (r"GFX12\d\d|NAVI4\d", "rdna4"),
    (r"GFX11\d\d|NAVI3\d|PHOENIX|STRIX|KRACKAN|HAWK_?POINT", "rdna3"),
    (r"GFX103\d|NAVI2\d|VANGOGH|REMBRANDT|RAPHAEL|MENDOCINO", "rdna2"),
    (r"GFX101\d|NAVI1\d", "rdna1"),
    (
        r"GFX[6-9]\d\d|GFX90\w|TAHITI|PITCAIRN|VERDE|OLAND|HAINAN|BONAIRE|KAVERI|KABINI|HAWAII|TONGA|ICELAND|CARRIZO"
        r"|FIJI|STONEY|POLARIS|VEGA|RAVEN|RENOIR",
        "gcn",
    ),
)
_AMD_NAMES = (
    (r"\bMI[1-3]\d\d", "cdna"),
    (r"RX 90\d\d|R9[67]00\b", "rdna4"),
    (r"RX 7[1-9]\d\d|\bW7\d\d\d|\bV710\b|\b(7[468]0|8[4689]0)M\b|\b80[456]0S\b", "rdna3"),
    (r"RX 6[1-9]\d\d|\bW6\d\d\d|\bV620\b|\b(610|660|680)M\b|CUSTOM GPU 0(405|932)", "rdna2"),
    (r"RX 5[1-9]00|\bW5\d\d\d|\bV520\b|PRO 5[1-9]00", "rdna1"),
    (
        r"RX (VEGA|[45]\d\d\b)|VEGA|RADEON VII|PRO VII|\bR[579] |HD [78]\d\d\d|\bWX ?\d{4}|FIREPRO|PRO 4\d\d"
        r"|PRO 5\d\d\b|\bMI(6|8|25|50|60)\b|\bV340\b|\bFURY\b",
        "gcn",
    ),
)
_INTEL_NAMES = (
    # Xe3 (Panther Lake) has Xe2's subgroup of 16 and matrix shapes and counts as it.
    (r"\((LNL|BMG|PTL|WCL)\b|\bB[35678]\d[05]?\b|\b1[34]0V\b", "intel-xe2"),
    (
        r"\((DG1|DG2|ACM|ATS-?M|PVC|TGL|RKL|ADL|RPL|MTL|ARL)\b|ARC|IRIS\(R\) XE|UHD GRAPHICS 7\d\d|DATA CENTER GPU",
        "intel-xe",
    ),
    (
        r"HD GRAPHICS|IRIS|\((HSW|BDW|CHV|SKL|BXT|KBL|CFL|WHL|AML|GLK|CML|ICL|EHL|JSL)\b",
        "intel-gen",
    ),
)

# Adreno's 6xx by what fits their registers: docs/benchmarks/devices.md. The first have no storage of 16 bits.
_ADRENO_NAMES = (
    (r"ADRENO *6([01]\d|[2348]0|[78]5)\b", "qualcomm-adreno6"),
    (r"ADRENO *6(2[13]|50)\b", "qualcomm-adreno65"),
    (r"ADRENO *6(35|4[234]L?|6[03]|90)\b|ADRENO [78]C\+? GEN 3", "qualcomm-adreno66"),
)


def _search(table, text: str) -> str | None:
    return next((answer for pattern, answer in table if re.search(pattern, text)), None)


def _by_id(table, device_id: int) -> str | None:
    return next((answer for first, last, answer in table if first <= device_id <= last), None)


def _nvidia(info: DeviceInfo, name: str) -> str:
    chip = re.search(r"\bNVK ([A-Z]{2})\d", name)
    found = _NVK_CHIPS.get(chip.group(1)) if chip else None
    found = found or _by_id(_NVIDIA_IDS, info.device_id) or _search(_NVIDIA_NAMES, name)
    return f"nvidia-{found}" if found else "nvidia"


def _amd(info: DeviceInfo, name: str) -> str:
    chip = re.search(r"\(RADV ([^)]*)\)", name)
    found = _search(_RADV_CHIPS, chip.group(1)) if chip else None
    found = found or _by_id(_AMD_IDS, info.device_id) or _search(_AMD_NAMES, name)
    if found:
        return f"amd-{found}"
    low, high = info.subgroup_sizes
    # Only RDNA runs waves of 32. A fixed 64 may be GCN or CDNA, or a driver that cannot choose: it tells nothing.
    return "amd-rdna" if low == 32 and high == 64 else "amd"


def identify(info: DeviceInfo) -> str:
    """The device's architecture, one of ``grilly.registry.ARCHITECTURES``.

    Read from vendor, driver, chip name (which Mesa's drivers report), PCI device id, marketing name and subgroup
    sizes, in this order. RDNA 3.5 counts as "amd-rdna3", Adreno's first 6xx as "qualcomm-adreno6", those like the 650
    and the 660 as "qualcomm-adreno65" and "-adreno66", and Intel's Xe-LP, Xe-LPG and Xe-HPG all as "intel-xe". A
    device of a known vendor that is not recognised gets the vendor's bare name, and any other "generic".
    """
    name = re.sub(r"\(TM\)|\(tm\)|™|®", "", info.name).upper()
    vendor, driver = info.vendor.lower(), info.driver.lower()
    if "LLVMPIPE" in name or "llvmpipe" in driver:
        return "llvmpipe"
    if "SWIFTSHADER" in name:
        return "generic"
    if info.vendor_id == _NVIDIA or vendor == "nvidia":
        return _nvidia(info, name)
    if info.vendor_id == _AMD or vendor == "amd":
        return _amd(info, name)
    if info.vendor_id == _INTEL or vendor == "intel":
        return _search(_INTEL_NAMES, name) or "intel"
    if info.vendor_id == _APPLE or vendor == "apple" or name.startswith("APPLE "):
        return "apple"
    if info.vendor_id == _QUALCOMM or vendor == "qualcomm" or "ADRENO" in name:
        return _search(_ADRENO_NAMES, name) or "qualcomm-adreno"
    if info.vendor_id == _ARM or vendor == "arm" or re.search(r"\bMALI\b|IMMORTALIS", name):
        return "arm-mali"
    return "generic"
