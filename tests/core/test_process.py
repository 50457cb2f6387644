"""What the process tells the allocator, looked at in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOOK = """
import sys
import torch
from fedshift.base.process import keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def flags(address):
    inside = False
    for line in open("/proc/self/smaps"):
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            low, high = (int(word, 16) for word in words[0].split("-"))
            inside = low <= address < high
        elif inside and words[0] == "VmFlags:":
            return words[1:]

if sys.argv[1] == "kept":
    before = resident()
    keep_freed_memory()
    assert resident() - before < 2**26, "addresses alone cost no memory"
tensors = [torch.ones(2**22) for _ in range(3)]
print(*flags(tensors[-1].data_ptr()))
"""
SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not SWITCH.exists(), reason="this kernel has no large pages")
@pytest.mark.parametrize("how", ["kept", "plain"])
def test_tensors_lie_where_large_pages_were_asked_for(how):
    words = [sys.executable, "-c", LOOK, how]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert ("hg" in found.stdout.split()) is (how == "kept")
