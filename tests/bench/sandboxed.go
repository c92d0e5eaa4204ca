package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// everyLimit is what makes a launch have a control group as well.
var everyLimit = policy.Limits{Tasks: 512, OpenFiles: 4096}

// bwrapFiltered is bubblewrap with the same filter, which it reads for each run.
func (r *room) bwrapFiltered(filter string, args []string) {
	f, err := os.Open(filter)
	r.must(err)
	defer f.Close()
	cmd := r.command("bwrap", append([]string{"--seccomp", "3"}, args...)...)
	cmd.ExtraFiles = []*os.File{f}
	if out, err := cmd.CombinedOutput(); err != nil {
		r.Fatalf("bwrap: %v\n%s", err, out)
	}
}

// filterFile is the default filter as bubblewrap takes it.
func (s *station) filterFile() string {
	name := filepath.Join(s.root.Path, "..", "filter.bpf")
	s.r.must(os.WriteFile(name, s.filter, 0o600))
	return name
}

// everyProtection launches with what the default sandbox has and a control group,
// in turn with bubblewrap and the same filter.
func everyProtection(r *room) {
	s, ids := launchStation(r, 1, 512)
	args, filter := s.bwrapArgs(ids[0]), s.filterFile()
	own, peer := r.turns(r.runs(200),
		func() time.Duration { return timed(func() { s.launchLimited(ids[0], everyLimit) }) },
		func() time.Duration { return timed(func() { r.bwrapFiltered(filter, args) }) })
	r.times("launch with every protection and a control group", "bwrap --unshare-all with the same filter", 0.7, own, peer)
}

// sustained is the same by eight callers at once, for a minute each.
func sustained(r *room) {
	const callers = 8
	s, ids := launchStation(r, callers, 8192) // the records of so many Workers take inodes
	args, filter := s.bwrapArgs(ids[0]), s.filterFile()
	span := 20 * time.Second
	if r.quick {
		span = 4 * time.Second
	}
	rate := func(f func(caller int)) float64 {
		counts := make([]int, callers)
		end := time.Now().Add(span)
		took := timed(func() {
			r.atOnce(callers, 1, func(c int) {
				for time.Now().Before(end) {
					r.goOn()
					f(c)
					counts[c]++
				}
			})
		})
		n := 0
		for _, c := range counts {
			n += c
		}
		return float64(n) / took.Seconds()
	}
	var own, peer []float64
	for range 3 {
		own = append(own, rate(func(c int) { s.launchLimited(ids[c], everyLimit) }))
		peer = append(peer, rate(func(int) { r.bwrapFiltered(filter, args) }))
	}
	r.rates("the same, 8 at once, sustained for a minute", "bwrap likewise", 2, own, peer)
}

// buildScript times a build with a warm cache, as statusScript times a status.
const buildScript = `export GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local; b() { go build -o /tmp/x ./policy/mkdiagnostics; }
b; a=$EPOCHREALTIME; b; b=$EPOCHREALTIME; b; b; c=$EPOCHREALTIME; echo $a $b $c`

// insideAndOutside does work that is mostly system calls in the sandbox and on the
// host, and compares the second time of each.
//
// On an overlay that is also the overlay's price, of which a status has one for each
// lstat(2); files by reflink are the file system's own.
func insideAndOutside(r *room) {
	compare := func(what, fs, strategy, src, script string, n int) {
		own, peer := r.turns(r.runs(n),
			func() time.Duration {
				_, second := statusTimes(r, r.yoi(filepath.Join(fs, "rt"), "run", "--repo", src, "--strategy", strategy, "--", "bash", "-c", script))
				return second
			},
			func() time.Duration {
				cmd := r.command("bash", "-c", script)
				cmd.Dir = src
				out, err := cmd.Output()
				r.must(err)
				_, second := statusTimes(r, string(out))
				return second
			})
		r.times(what, "the same outside", 1.05, own, peer)
	}
	ext4 := r.fs("ext4", 2048)
	compare("git status inside, 100,000 files, overlay", ext4, "overlay", r.source(ext4, 100_000), statusScript, 9)
	compare("go build inside, warm cache", ext4, "overlay", r.ownModule(ext4), buildScript, 5)
	xfs := r.fs("xfs", 4096)
	compare("git status inside, 100,000 files, reflink", xfs, "reflink", r.source(xfs, 100_000), statusScript, 5)
}

// ownModule is a repository of a part of this one that needs no other module.
func (r *room) ownModule(fs string) string {
	module, err := rig.ModuleDir()
	r.must(err)
	dir := filepath.Join(fs, "module")
	r.must(os.Mkdir(dir, 0o755))
	r.do("cp", "-r", filepath.Join(module, "policy"), dir)
	r.must(os.RemoveAll(filepath.Join(dir, "policy/seccomp")))
	r.must(os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module yoi.dev/yoi-runtime\n\ngo 1.24\n"), 0o644))
	r.do("git", "-C", dir, "init", "-q", "-b", "main")
	r.do("git", "-C", dir, "add", "-A")
	r.do("git", "-C", dir, "-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-m", "module")
	return dir
}

// idleWorker is what the processes beside an idle Worker's own take for themselves: the
// sandbox's PID 1 and, with an allowlist, the proxy and its sandbox's. Two Workers run,
// so that what all of them share is nobody's. The log goes to its file by itself.
func idleWorker(r *room) {
	fs := r.fs("ext4", 512)
	src := r.source(fs, 10)
	var last *exec.Cmd
	for i := range 2 {
		cmd := r.command(rig.Program(r, "yoi"), "--runtime-root", filepath.Join(fs, fmt.Sprint("rt", i)),
			"run", "--repo", src, "--allow", "127.0.0.1:9", "--", "sh", "-c", "echo up; exec sleep 1000")
		cmd.Env = append(os.Environ(), "YOI_EGRESS="+rig.Program(r, "yoi-egress"))
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.StdoutPipe()
		r.must(err)
		r.must(cmd.Start())
		defer func() {
			_ = cmd.Process.Signal(unix.SIGTERM) // it may have ended
			_ = cmd.Wait()                       // by the signal
		}()
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
			r.Fatalf("the Worker says %q, %v\n%s", line, err, said.String())
		}
		last = cmd
	}
	time.Sleep(3 * time.Second) // the proxy gives back what its start took
	private, seen := 0.0, 0
	for _, pid := range descendants(r, last.Process.Pid) {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		r.must(err)
		if strings.TrimSpace(string(comm)) != "sleep" {
			seen++
			private += privateMiB(r, pid)
		}
	}
	if seen != 3 {
		r.Fatalf("%d processes beside the Worker's own, and not two of PID 1 and a proxy", seen)
	}
	r.add(row{What: "private memory beside an idle Worker with an allowlist", Against: "3 MiB", Target: 1, Ratio: private / 3, Met: private <= 3,
		Own: private, Peer: 3, Unit: "MiB", Runs: 1})
}

// descendants are the processes below one, proc(5).
func descendants(r *room, pid int) (all []int) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	r.must(err)
	for _, t := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		r.must(err)
		for _, f := range strings.Fields(string(b)) {
			child, err := strconv.Atoi(f)
			r.must(err)
			all = append(append(all, child), descendants(r, child)...)
		}
	}
	return all
}

// privateMiB is what a process shares with nobody: "Private_" in smaps_rollup, proc(5).
func privateMiB(r *room, pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	r.must(err)
	sum := 0.0
	for line := range strings.Lines(string(b)) {
		var kib float64
		if name, rest, ok := strings.Cut(line, ":"); ok && strings.HasPrefix(name, "Private_") {
			_, err := fmt.Sscan(rest, &kib)
			r.must(err)
			sum += kib / 1024
		}
	}
	return sum
}
