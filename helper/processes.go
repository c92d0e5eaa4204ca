package helper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// ProcessUsage is what a Worker's processes use now, together.
type ProcessUsage struct {
	// CPU is of those that run and of those that they have waited for.
	CPU       time.Duration `json:"cpu_ns"`
	Memory    int64         `json:"memory_bytes"` // resident; shared pages count for each
	Processes int           `json:"processes"`
	Tasks     int           `json:"tasks"` // with threads
}

const (
	// userHZ is the unit of times in /proc: sysconf(_SC_CLK_TCK), 100 for every
	// program on Linux.
	userHZ = 100
	// maxCounted bounds what is looked at: a Worker may have more processes.
	maxCounted = 4096
)

// ProcessUsage measures a live Worker, whether or not it has a control group: by the
// descendants of its PID 1, which all its processes are. Sessions are not counted.
func (l *Local) ProcessUsage(ctx context.Context, id policy.WorkerID) (ProcessUsage, error) {
	const op = "helper.processes"
	if err := policy.CheckID("worker", string(id)); err != nil {
		return ProcessUsage{}, err
	}
	pidfd, err := l.openWorker(ctx, id)
	if err != nil {
		return ProcessUsage{}, err
	}
	defer pidfd.Close()
	pid, err := nsexec.PidOf(pidfd)
	var u ProcessUsage
	if err == nil {
		u, err = countDescendants(ctx, pid)
	}
	if err == nil {
		// The numbers of a dead PID 1's pid could be another process' by now.
		_, err = nsexec.PidOf(pidfd)
	}
	if errors.Is(err, unix.ESRCH) {
		return ProcessUsage{}, policy.Errorf(policy.CodeWorkerNotRunning, op, "the worker %s has ended", id)
	}
	if err != nil {
		return ProcessUsage{}, policy.Errorf(policy.CodeInternal, op, "the processes of %s cannot be looked at", id).Because(err)
	}
	return u, nil
}

func countDescendants(ctx context.Context, top int) (u ProcessUsage, err error) {
	page := int64(os.Getpagesize())
	todo := []int{top}
	for n := 0; len(todo) > 0 && n < maxCounted; n++ {
		if err := ctx.Err(); err != nil {
			return u, err
		}
		pid := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		s, ok := readStat(pid)
		if !ok {
			continue // it has just ended
		}
		u.CPU += time.Duration(s.ticks) * (time.Second / userHZ)
		u.Memory += s.pages * page
		u.Processes++
		u.Tasks += s.threads
		todo = append(todo, childrenOf(pid)...)
	}
	return u, nil
}

func childrenOf(pid int) (out []int) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil
	}
	for _, t := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name())) // CONFIG_PROC_CHILDREN
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// processStat is of /proc/<pid>/stat, proc_pid_stat(5).
type processStat struct {
	ticks   int64 // utime, stime, cutime, cstime: fields 14 to 17
	threads int   // field 20
	pages   int64 // rss: field 24
}

func readStat(pid int) (processStat, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return processStat{}, false
	}
	return parseStat(b)
}

// parseStat counts fields from the closing parenthesis: the name before it is the
// process' to choose.
func parseStat(b []byte) (s processStat, ok bool) {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 22 {
		return s, false
	}
	number := func(field int) int64 {
		n, err := strconv.ParseInt(string(f[field-3]), 10, 64)
		ok = ok && err == nil
		return n
	}
	ok = true
	for field := 14; field <= 17; field++ {
		s.ticks += number(field)
	}
	s.threads, s.pages = int(number(20)), number(24)
	return s, ok
}
