package cgroup

import (
	"fmt"
	"strconv"
)

// Limits of one group. A zero field is no limit.
type Limits struct {
	// MemoryMax is bytes, above which the kernel kills (memory.max); SwapMax bytes
	// of swap on top of it: none, unless said. MemoryHigh slows down (v2 only).
	MemoryMax, MemoryHigh, SwapMax uint64
	// Tasks is how many processes and threads (pids.max).
	Tasks uint64
	// CPUPercent is the time of one CPU in percent: 150 is one and a half (cpu.max).
	CPUPercent uint64
	// CPUWeight and IOWeight are shares between 1 and 10000; others have 100.
	CPUWeight, IOWeight uint64
	// IOReadBPS and IOWriteBPS are bytes per second on Device.
	IOReadBPS, IOWriteBPS uint64
	// Device is the block device of the IO limits, as "major:minor".
	Device string
}

// Controllers that the limits need, sorted.
func (l Limits) Controllers() (names []string) {
	if l.CPUPercent != 0 || l.CPUWeight != 0 {
		names = append(names, "cpu")
	}
	if l.IOWeight != 0 || l.IOReadBPS != 0 || l.IOWriteBPS != 0 {
		names = append(names, "io")
	}
	if l.MemoryMax != 0 || l.MemoryHigh != 0 {
		names = append(names, "memory")
	}
	if l.Tasks != 0 {
		names = append(names, "pids")
	}
	return names
}

// setting is one write to a file of a controller's directory.
type setting struct {
	controller, file, value string
	// optional files are missing where a kernel was built without them; what they
	// would add is not a limit by itself.
	optional bool
}

// cpuPeriod is cpu.max's, in microseconds: the kernel's default.
const cpuPeriod = 100_000

func u(n uint64) string { return strconv.FormatUint(n, 10) }

// settings2 are the limits in cgroup v2's words.
func (l Limits) settings2() (s []setting) {
	add := func(controller, file, value string) { s = append(s, setting{controller, file, value, false}) }
	if l.CPUPercent != 0 {
		add("cpu", "cpu.max", fmt.Sprintf("%d %d", l.CPUPercent*cpuPeriod/100, cpuPeriod))
	}
	if l.CPUWeight != 0 {
		add("cpu", "cpu.weight", u(l.CPUWeight))
	}
	if l.IOWeight != 0 {
		add("io", "io.weight", "default "+u(l.IOWeight))
	}
	if l.IOReadBPS != 0 {
		add("io", "io.max", l.Device+" rbps="+u(l.IOReadBPS))
	}
	if l.IOWriteBPS != 0 {
		add("io", "io.max", l.Device+" wbps="+u(l.IOWriteBPS))
	}
	if l.MemoryHigh != 0 {
		add("memory", "memory.high", u(l.MemoryHigh))
	}
	if l.MemoryMax != 0 {
		add("memory", "memory.max", u(l.MemoryMax))
		s = append(s, setting{"memory", "memory.swap.max", u(l.SwapMax), true})
	}
	if l.Tasks != 0 {
		add("pids", "pids.max", u(l.Tasks))
	}
	return s
}

// settings1 are the limits in cgroup v1's words. Weights are scaled from 100 to
// v1's defaults of 1024 and 500. There is no memory.high.
func (l Limits) settings1() (s []setting) {
	add := func(controller, file, value string) { s = append(s, setting{controller, file, value, false}) }
	if l.CPUPercent != 0 {
		add("cpu", "cpu.cfs_period_us", u(cpuPeriod))
		add("cpu", "cpu.cfs_quota_us", u(l.CPUPercent*cpuPeriod/100))
	}
	if l.CPUWeight != 0 {
		add("cpu", "cpu.shares", u(max(2, l.CPUWeight*1024/100)))
	}
	if l.IOWeight != 0 {
		add("blkio", "blkio.weight", u(min(1000, max(10, l.IOWeight*5))))
	}
	if l.IOReadBPS != 0 {
		add("blkio", "blkio.throttle.read_bps_device", l.Device+" "+u(l.IOReadBPS))
	}
	if l.IOWriteBPS != 0 {
		add("blkio", "blkio.throttle.write_bps_device", l.Device+" "+u(l.IOWriteBPS))
	}
	if l.MemoryMax != 0 {
		add("memory", "memory.limit_in_bytes", u(l.MemoryMax))
		s = append(s, setting{"memory", "memory.memsw.limit_in_bytes", u(l.MemoryMax + l.SwapMax), true})
	}
	if l.Tasks != 0 {
		add("pids", "pids.max", u(l.Tasks))
	}
	return s
}
