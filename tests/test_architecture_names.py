"""Real device names, as drivers report them, and the architecture each belongs to."""

import pytest

from grilly.registry import ARCHITECTURES, identify, matches
from grilly.runtime.interface import DeviceInfo

NVIDIA, AMD, INTEL, APPLE, QUALCOMM, ARM, MESA, GOOGLE = (
    0x10DE, 0x1002, 0x8086, 0x106B, 0x5143, 0x13B5, 0x10005, 0x1AE0,
)  # fmt: skip


def device(name, vendor_id=0, device_id=0, driver="", sizes=(32, 32), vendor=""):
    return DeviceInfo(
        index=0, name=name, vendor=vendor, vendor_id=vendor_id, device_id=device_id, kind="discrete", driver=driver,
        driver_version="", api_version=(1, 3, 0), subgroup_size=sizes[-1], subgroup_sizes=sizes, limits={},
        features=frozenset(), memory_bytes=0, unified=False,
    )  # fmt: skip


# Names without a device id: what the name alone must tell.
NAMES = [
    (NVIDIA, "NVIDIA H200", "nvidia-hopper"),
    (NVIDIA, "NVIDIA H100 80GB HBM3", "nvidia-hopper"),
    (NVIDIA, "NVIDIA H100 PCIe", "nvidia-hopper"),
    (NVIDIA, "NVIDIA H20", "nvidia-hopper"),
    (NVIDIA, "NVIDIA GH200 480GB", "nvidia-hopper"),
    (NVIDIA, "NVIDIA B200", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA GB200", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA GB10", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA GeForce RTX 5090", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA GeForce RTX 5070 Ti Laptop GPU", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA GeForce RTX 4090", "nvidia-ada"),
    (NVIDIA, "NVIDIA GeForce RTX 4060 Laptop GPU", "nvidia-ada"),
    (NVIDIA, "NVIDIA RTX 6000 Ada Generation", "nvidia-ada"),
    (NVIDIA, "NVIDIA RTX 4000 SFF Ada Generation", "nvidia-ada"),
    (NVIDIA, "NVIDIA L40S", "nvidia-ada"),
    (NVIDIA, "NVIDIA L4", "nvidia-ada"),
    (NVIDIA, "NVIDIA A100-SXM4-80GB", "nvidia-ampere"),
    (NVIDIA, "NVIDIA A100 80GB PCIe", "nvidia-ampere"),
    (NVIDIA, "NVIDIA A10G", "nvidia-ampere"),
    (NVIDIA, "NVIDIA RTX A6000", "nvidia-ampere"),
    (NVIDIA, "NVIDIA RTX A500 Laptop GPU", "nvidia-ampere"),
    (NVIDIA, "NVIDIA GeForce RTX 3080 Ti", "nvidia-ampere"),
    (NVIDIA, "NVIDIA GeForce RTX 2050", "nvidia-ampere"),
    (NVIDIA, "NVIDIA Tegra Orin (nvgpu)", "nvidia-ampere"),
    (NVIDIA, "NVIDIA GeForce RTX 3060 (NVK GA106)", "nvidia-ampere"),
    (NVIDIA, "NVIDIA GeForce RTX 4070 (NVK AD104)", "nvidia-ada"),
    (NVIDIA, "Tesla T4", "nvidia-turing"),
    (NVIDIA, "NVIDIA T1000 8GB", "nvidia-turing"),
    (NVIDIA, "NVIDIA GeForce RTX 2080 Ti", "nvidia-turing"),
    (NVIDIA, "NVIDIA GeForce GTX 1660 SUPER", "nvidia-turing"),
    (NVIDIA, "Quadro RTX 6000", "nvidia-turing"),
    (NVIDIA, "Quadro RTX 4000", "nvidia-turing"),
    (NVIDIA, "NVIDIA TITAN RTX", "nvidia-turing"),
    (NVIDIA, "Tesla V100-SXM2-16GB", "nvidia-volta"),
    (NVIDIA, "NVIDIA TITAN V", "nvidia-volta"),
    (NVIDIA, "Tesla P100-PCIE-16GB", "nvidia-pascal"),
    (NVIDIA, "NVIDIA GeForce GTX 1080 Ti", "nvidia-pascal"),
    (NVIDIA, "NVIDIA TITAN Xp", "nvidia-pascal"),
    (NVIDIA, "Quadro P2000", "nvidia-pascal"),
    (NVIDIA, "NVIDIA GeForce GTX 980", "nvidia-maxwell"),
    (NVIDIA, "NVIDIA GeForce GTX TITAN X", "nvidia-maxwell"),
    (NVIDIA, "NVIDIA GeForce GT 710", "nvidia-kepler"),
    (NVIDIA, "NVIDIA something of 2031", "nvidia"),
    (AMD, "AMD Radeon RX 7900 XTX (RADV NAVI31)", "amd-rdna3"),
    (AMD, "AMD Radeon RX 7900 XTX", "amd-rdna3"),
    (AMD, "AMD Radeon RX 7600M XT", "amd-rdna3"),
    (AMD, "AMD Radeon PRO W7900", "amd-rdna3"),
    (AMD, "AMD Radeon 780M (RADV PHOENIX)", "amd-rdna3"),
    (AMD, "AMD Radeon 780M Graphics (RADV GFX1103_R1)", "amd-rdna3"),
    (AMD, "AMD Radeon 780M Graphics", "amd-rdna3"),
    (AMD, "AMD Radeon 890M Graphics (RADV STRIX1)", "amd-rdna3"),
    (AMD, "AMD Radeon Graphics (RADV GFX1151)", "amd-rdna3"),
    (AMD, "AMD Radeon(TM) 8060S Graphics", "amd-rdna3"),
    (AMD, "AMD Radeon RX 9070 XT (RADV GFX1201)", "amd-rdna4"),
    (AMD, "AMD Radeon RX 9070 XT", "amd-rdna4"),
    (AMD, "AMD Radeon AI PRO R9700", "amd-rdna4"),
    (AMD, "AMD Radeon RX 6800 XT", "amd-rdna2"),
    (AMD, "AMD Radeon RX 6800 (RADV NAVI21)", "amd-rdna2"),
    (AMD, "AMD Custom GPU 0405 (RADV VANGOGH)", "amd-rdna2"),
    (AMD, "AMD Radeon 680M (RADV REMBRANDT)", "amd-rdna2"),
    (AMD, "AMD Ryzen 9 7950X 16-Core Processor (RADV RAPHAEL_MENDOCINO)", "amd-rdna2"),
    (AMD, "AMD Radeon RX 5700 XT", "amd-rdna1"),
    (AMD, "AMD Radeon RX 5700 XT (RADV NAVI10)", "amd-rdna1"),
    (AMD, "AMD Radeon Pro 5500M", "amd-rdna1"),
    (AMD, "AMD Radeon RX 580 Series (RADV POLARIS10)", "amd-gcn"),
    (AMD, "Radeon RX 580 Series", "amd-gcn"),
    (AMD, "AMD Radeon VII (RADV VEGA20)", "amd-gcn"),
    (AMD, "Radeon RX Vega", "amd-gcn"),
    (AMD, "AMD Radeon Vega 8 Graphics (RADV RAVEN)", "amd-gcn"),
    (AMD, "AMD Radeon Graphics (RADV RENOIR)", "amd-gcn"),
    (AMD, "AMD Radeon R9 200 Series (RADV HAWAII)", "amd-gcn"),
    (AMD, "AMD Radeon R9 Fury", "amd-gcn"),
    (AMD, "AMD Instinct MI250X (RADV ALDEBARAN)", "amd-cdna"),
    (AMD, "AMD Instinct MI300X", "amd-cdna"),
    (AMD, "AMD Instinct MI100 (RADV ARCTURUS)", "amd-cdna"),
    (AMD, "AMD Radeon Instinct MI50", "amd-gcn"),
    (INTEL, "Intel(R) Arc(tm) A770 Graphics (DG2)", "intel-xe"),
    (INTEL, "Intel(R) Arc(TM) A750 Graphics", "intel-xe"),
    (INTEL, "Intel(R) Arc(tm) Graphics (MTL)", "intel-xe"),
    (INTEL, "Intel(R) UHD Graphics 770 (ADL-S GT1)", "intel-xe"),
    (INTEL, "Intel(R) Iris(R) Xe Graphics (TGL GT2)", "intel-xe"),
    (INTEL, "Intel(R) Iris(R) Xe Graphics", "intel-xe"),
    (INTEL, "Intel(R) Graphics (RPL-P)", "intel-xe"),
    (INTEL, "Intel(R) Arc(TM) 140T GPU", "intel-xe"),
    (INTEL, "Intel(R) Graphics (LNL)", "intel-xe2"),
    (INTEL, "Intel(R) Arc(tm) Graphics (LNL)", "intel-xe2"),
    (INTEL, "Intel(R) Arc(TM) 140V GPU (16GB)", "intel-xe2"),
    (INTEL, "Intel(R) Arc(tm) B580 Graphics (BMG G21)", "intel-xe2"),
    (INTEL, "Intel(R) Arc(TM) B570 Graphics", "intel-xe2"),
    (INTEL, "Intel(R) UHD Graphics 630 (CFL GT2)", "intel-gen"),
    (INTEL, "Intel(R) UHD Graphics 630", "intel-gen"),
    (INTEL, "Intel(R) HD Graphics 620 (KBL GT2)", "intel-gen"),
    (INTEL, "Intel(R) Iris(R) Plus Graphics (ICL GT2)", "intel-gen"),
    (INTEL, "Intel(R) of 2031", "intel"),
    (APPLE, "Apple M2", "apple"),
    (APPLE, "Apple M1 Pro", "apple"),
    (MESA, "Apple M1 (G13G B1)", "apple"),
    (QUALCOMM, "Adreno (TM) 740", "qualcomm-adreno"),
    (QUALCOMM, "Adreno (TM) 630", "qualcomm-adreno6"),
    (QUALCOMM, "Turnip Adreno (TM) 618", "qualcomm-adreno6"),
    (QUALCOMM, "Turnip Adreno (TM) 610", "qualcomm-adreno6"),
    (QUALCOMM, "Turnip Adreno (TM) 620", "qualcomm-adreno6"),
    (QUALCOMM, "Turnip Adreno (TM) 640", "qualcomm-adreno6"),
    (QUALCOMM, "Qualcomm(R) Adreno(TM) 685 GPU", "qualcomm-adreno6"),
    (QUALCOMM, "Adreno (TM) 650", "qualcomm-adreno65"),
    (QUALCOMM, "Turnip Adreno (TM) 621", "qualcomm-adreno65"),
    (QUALCOMM, "Adreno623", "qualcomm-adreno65"),
    (QUALCOMM, "Turnip Adreno (TM) 660", "qualcomm-adreno66"),
    (QUALCOMM, "Adreno (TM) 642L", "qualcomm-adreno66"),
    (QUALCOMM, "Adreno 7c+ Gen 3 Lite", "qualcomm-adreno66"),
    (QUALCOMM, "Qualcomm(R) Adreno(TM) 690 GPU", "qualcomm-adreno66"),
    (QUALCOMM, "Adreno (TM) 540", "qualcomm-adreno"),
    (QUALCOMM, "Adreno X1-85", "qualcomm-adreno"),
    (QUALCOMM, "Turnip Adreno (TM) 750", "qualcomm-adreno"),
    (ARM, "Mali-G78", "arm-mali"),
    (ARM, "Mali-G610 (Panfrost)", "arm-mali"),
    (ARM, "Immortalis-G715", "arm-mali"),
    (MESA, "llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe"),
    (GOOGLE, "SwiftShader Device (LLVM 10.0.0)", "generic"),
    (0x1010, "PowerVR B-Series BXM-4-64", "generic"),
]


@pytest.mark.parametrize(("vendor_id", "name", "expected"), NAMES, ids=[name for _, name, _ in NAMES])
def test_names(vendor_id, name, expected):
    assert identify(device(name, vendor_id)) == expected
    assert expected in ARCHITECTURES


# A device id settles what a name leaves open; ids from the PCI ID database.
@pytest.mark.parametrize(
    ("vendor_id", "device_id", "expected"),
    [
        (NVIDIA, 0x2335, "nvidia-hopper"),  # H200 SXM
        (NVIDIA, 0x20B2, "nvidia-ampere"),  # A100 SXM4 80 GB
        (NVIDIA, 0x2684, "nvidia-ada"),  # RTX 4090
        (NVIDIA, 0x2504, "nvidia-ampere"),  # RTX 3060
        (NVIDIA, 0x1EB8, "nvidia-turing"),  # T4
        (NVIDIA, 0x21C4, "nvidia-turing"),  # GTX 1660 SUPER
        (NVIDIA, 0x1DB6, "nvidia-volta"),  # V100
        (NVIDIA, 0x1B06, "nvidia-pascal"),  # GTX 1080 Ti
        (NVIDIA, 0x2B85, "nvidia-blackwell"),  # RTX 5090
        (NVIDIA, 0x2901, "nvidia-blackwell"),  # B200
        (AMD, 0x744C, "amd-rdna3"),  # Navi 31
        (AMD, 0x7480, "amd-rdna3"),  # Navi 33
        (AMD, 0x73BF, "amd-rdna2"),  # Navi 21
        (AMD, 0x731F, "amd-rdna1"),  # Navi 10
        (AMD, 0x7550, "amd-rdna4"),  # Navi 48
        (AMD, 0x67DF, "amd-gcn"),  # Polaris 10
        (AMD, 0x1638, "amd-gcn"),  # Cezanne
        (AMD, 0x164E, "amd-rdna2"),  # Raphael
        (AMD, 0x1586, "amd-rdna3"),  # Strix Halo
        (AMD, 0x74A1, "amd-cdna"),  # MI300X
        (AMD, 0x7408, "amd-cdna"),  # MI250X
    ],
)
def test_device_ids_when_the_name_says_nothing(vendor_id, device_id, expected):
    assert identify(device("Graphics Device", vendor_id, device_id)) == expected


def test_chip_name_of_the_driver_wins_over_the_device_id():
    assert identify(device("NVIDIA Device (NVK GA104)", NVIDIA, 0x2684)) == "nvidia-ampere"
    assert identify(device("AMD Radeon Graphics (RADV NAVI31)", AMD, 0x73BF)) == "amd-rdna3"


def test_vendor_text_serves_where_the_id_is_not_known():
    assert identify(device("NVIDIA H200", vendor="nvidia")) == "nvidia-hopper"
    assert identify(device("AMD Radeon RX 6800 XT", vendor="amd")) == "amd-rdna2"
    assert identify(device("Intel(R) Arc(TM) A750 Graphics", vendor="intel")) == "intel-xe"


def test_the_driver_names_llvmpipe():
    assert identify(device("virtual", driver="llvmpipe")) == "llvmpipe"


def test_waves_of_32_tell_an_unknown_amd_device_is_rdna():
    assert identify(device("AMD Radeon Graphics", AMD, sizes=(32, 64))) == "amd-rdna"
    assert identify(device("AMD Radeon Graphics", AMD, sizes=(64, 64))) == "amd"


@pytest.mark.parametrize(
    ("pattern", "architecture", "expected"),
    [
        ("nvidia", "nvidia-hopper", True),
        ("nvidia-hopper", "nvidia-hopper", True),
        ("amd-rdna", "amd-rdna3", True),
        ("amd", "amd-rdna3", True),
        ("intel-xe", "intel-xe2", True),
        ("amd-rdna3", "amd-rdna", False),
        ("amd-rdna1", "amd-rdna10", False),
        ("nvidia-ad", "nvidia-ada", False),
        ("amd-rdna", "amd-gcn", False),
        ("nv", "nvidia", False),
        ("", "nvidia", False),
    ],
)
def test_matches(pattern, architecture, expected):
    assert matches(pattern, architecture) is expected
