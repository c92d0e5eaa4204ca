package helper

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// Process is one process of a Worker's sandbox. All text is the Worker's own claim,
// made printable.
type Process struct {
	// PID and Parent are as the sandbox has them; a parent of 0 is outside: a session.
	PID       int           `json:"pid"`
	Parent    int           `json:"parent"`
	State     string        `json:"state"` // a letter, proc_pid_stat(5)
	StartedAt time.Time     `json:"started_at"`
	CPU       time.Duration `json:"cpu_ns"`
	Memory    int64         `json:"memory_bytes"` // resident
	Threads   int           `json:"threads"`
	Command   string        `json:"command"`
}

// maxCommand bounds what is read of a command line.
const maxCommand = 512

// Processes lists those in a live Worker's pid namespace and in those below it, but for
// its PID 1: of the Worker and of sessions.
func (l *Local) Processes(ctx context.Context, id policy.WorkerID) ([]Process, error) {
	init, err := l.initOf(ctx, id)
	if err != nil {
		return nil, err
	}
	defer init.Close()
	ms, err := membersOf(ctx, init)
	if err != nil {
		return nil, notLooked("helper.processes", id, init, err)
	}
	inside := make(map[int]int, len(ms)) // host to sandbox
	for _, m := range ms {
		inside[m.host] = m.inside
	}
	boot := bootTime()
	out := make([]Process, 0, len(ms))
	for _, m := range ms {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.host))
		if err != nil || m.inside == 1 {
			continue
		}
		s, ok := parseStat(b)
		f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if !ok || len(f) < 22 {
			continue
		}
		parent, _ := strconv.Atoi(string(f[1]))
		start, _ := strconv.ParseInt(string(f[19]), 10, 64)
		own, _ := strconv.ParseInt(string(f[11]), 10, 64)
		system, _ := strconv.ParseInt(string(f[12]), 10, 64)
		out = append(out, Process{
			PID: m.inside, Parent: inside[parent], State: policy.Printable(string(f[0])),
			StartedAt: boot.Add(time.Duration(start) * (time.Second / userHZ)),
			CPU:       time.Duration(own+system) * (time.Second / userHZ),
			Memory:    s.pages * int64(os.Getpagesize()), Threads: s.threads, Command: commandLine(m.host, b),
		})
	}
	slices.SortFunc(out, func(a, b Process) int { return a.PID - b.PID })
	return out, nil
}

func notLooked(op string, id policy.WorkerID, init *os.File, err error) error {
	if hasEnded(init) {
		return policy.Errorf(policy.CodeWorkerNotRunning, op, "the worker %s has ended", id)
	}
	return policy.Errorf(policy.CodeInternal, op, "the processes of %s cannot be looked at", id).Because(err)
}

// commandLine is a process' arguments, or its name where it shows none, printable.
func commandLine(pid int, stat []byte) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err == nil {
		defer f.Close()
		b := make([]byte, maxCommand)
		if n, _ := f.Read(b); n > 0 {
			return policy.Printable(string(bytes.ReplaceAll(bytes.TrimRight(b[:n], "\x00"), []byte{0}, []byte{' '})))
		}
	}
	name, _, _ := bytes.Cut(stat[bytes.IndexByte(stat, '(')+1:], []byte(") "))
	return "[" + policy.Printable(string(name)) + "]"
}

// bootTime is what /proc counts starts from.
func bootTime() time.Time {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(ts.Nano()))
}

// member is a process of a sandbox: its numbers outside and inside.
type member struct{ host, inside int }

// membersOf finds the processes of the pid namespace of a sandbox's PID 1 by asking
// each for its own: sessions and what they leave behind are no descendants of PID 1.
func membersOf(ctx context.Context, init *os.File) ([]member, error) {
	pid, err := nsexec.PidOf(init)
	if err != nil {
		return nil, err
	}
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return nil, err
	}
	depth := len(nsPids("self"))
	proc, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []member
	for _, e := range proc {
		host, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		numbers := nsPids(e.Name())
		if len(numbers) <= depth || len(numbers) == depth+1 && !linksTo(e.Name(), want) || len(numbers) > depth+1 && !nestedIn(e.Name(), want, len(numbers)-depth-1) {
			continue
		}
		out = append(out, member{host, numbers[depth]})
	}
	return out, nil
}

func linksTo(pid, want string) bool {
	got, err := os.Readlink("/proc/" + pid + "/ns/pid")
	return err == nil && got == want
}

// nestedIn tells whether the pid namespace that is so many levels above a process' own
// is the wanted one (ioctl_nsfs(2)).
func nestedIn(pid, want string, levels int) bool {
	const nsGetParent = 0xb702
	ns, err := os.Open("/proc/" + pid + "/ns/pid")
	if err != nil {
		return false
	}
	defer func() { ns.Close() }()
	for range levels {
		fd, err := unix.IoctlRetInt(int(ns.Fd()), nsGetParent)
		if err != nil {
			return false
		}
		ns.Close()
		ns = os.NewFile(uintptr(fd), "ns")
	}
	got, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(ns.Fd())))
	return err == nil && got == want
}

// nsPids are a process' numbers in the pid namespaces from /proc's down to its own.
func nsPids(pid string) (out []int) {
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "NSpid:"); ok {
			for f := range strings.FieldsSeq(v) {
				n, err := strconv.Atoi(f)
				if err != nil {
					return nil
				}
				out = append(out, n)
			}
		}
	}
	return out
}
