package metrics

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process adds what is to be known of the daemon itself. The names are ours, not the
// usual go_ and process_: a node exporter that takes our text from a file has those
// itself, and takes none twice.
func (m *Metrics) process() {
	started := float64(time.Now().UnixMilli()) / 1000
	m.ask(gauge, "yoi_process_start_time_seconds", "When the daemon started, since 1970.", func() float64 { return started })
	m.ask(gauge, "yoi_process_resident_memory_bytes", "Resident memory of the daemon.", func() float64 { return resident("/proc/self/statm") })
	m.ask(counter, "yoi_process_cpu_seconds_total", "Time that the daemon had a CPU.", cpuTime)
	m.ask(gauge, "yoi_process_open_fds", "Open descriptors of the daemon.", openFiles)
	m.ask(gauge, "yoi_process_max_fds", "How many descriptors it may have.", maxFiles)
	m.ask(gauge, "yoi_process_goroutines", "Goroutines of the daemon.", func() float64 { return float64(runtime.NumGoroutine()) })
	m.ask(gauge, "yoi_process_heap_inuse_bytes", "What the daemon's heap uses of its memory.", func() float64 {
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return float64(s.HeapInuse)
	})
}

// resident reads the second field of proc_pid_statm(5): pages. Zero is unknown.
func resident(statm string) float64 {
	b, err := os.ReadFile(statm)
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return 0
	}
	return float64(pages) * float64(os.Getpagesize())
}

func cpuTime() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func openFiles() float64 {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return float64(len(fds) - 1) // without the one that reads
}

func maxFiles() float64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return float64(l.Cur)
}
