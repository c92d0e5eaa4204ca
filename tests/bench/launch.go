package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

const launchWhat = "launch of /bin/true, request to reaped"

// launchStation is a station with n small workspaces, on the kind of file
// system that most machines have, of so many MiB.
func launchStation(r *room, n, mib int) (*station, []policy.AllocationID) {
	s := r.station(r.fs("ext4", mib))
	s.useRepo(testenv.RepoSmall(r), policy.StrategyAuto)
	var ids []policy.AllocationID
	for range n {
		ids = append(ids, s.workspace())
	}
	return s, ids
}

func launchAgainstBwrap(r *room) {
	s, ids := launchStation(r, 1, 512)
	args := s.bwrapArgs(ids[0])
	own, peer := r.turns(r.runs(200),
		func() time.Duration { return timed(func() { s.launch(ids[0]) }) },
		func() time.Duration { return timed(func() { r.bwrap(args) }) })
	r.times(launchWhat, "bwrap --unshare-all, same binds", 0.6, own, peer)
	r.fact("yoi-helper, resident after these launches", residentMiB(r, s.pid), "MiB")
}

func launchAgainstRunc(r *room) {
	s, ids := launchStation(r, 1, 512)
	runc := s.runcBundle(ids[0])
	own, peer := r.turns(r.runs(60),
		func() time.Duration { return timed(func() { s.launch(ids[0]) }) },
		func() time.Duration { return timed(runc) })
	r.times(launchWhat, "runc run, equivalent bundle", 0.12, own, peer)
}

// launchesAtOnce counts launches of eight callers at once over equal numbers.
func launchesAtOnce(r *room) {
	const callers = 8
	s, ids := launchStation(r, callers, 512)
	args := s.bwrapArgs(ids[0])
	each := r.runs(30)
	rate := func(f func(caller int)) float64 {
		return float64(callers*each) / timed(func() { r.atOnce(callers, each, f) }).Seconds()
	}
	var own, peer []float64
	for i := range r.runs(9) + 1 {
		a := rate(func(c int) { s.launch(ids[c]) })
		b := rate(func(int) { r.bwrap(args) })
		if i > 0 {
			own, peer = append(own, a), append(peer, b)
		}
	}
	r.rates("launches, 8 at once", "bwrap, 8 at once", 2, own, peer)
}

// atOnce has each of n callers do f each times, and passes on a failure.
func (r *room) atOnce(n, each int, f func(caller int)) {
	var wg sync.WaitGroup
	failed := make(chan failure, n)
	for c := range n {
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					failed <- p.(failure)
				}
			}()
			for range each {
				r.goOn()
				f(c)
			}
		})
	}
	wg.Wait()
	select {
	case p := <-failed:
		panic(p)
	default:
	}
}

// bwrapArgs are the default sandbox in bubblewrap's words: the same system
// directories and small files, the workspace, scratch and the cache's objects.
// It has no filter and no read-only parts of /proc: they are left out in its
// favour.
func (s *station) bwrapArgs(id policy.AllocationID) []string {
	args := []string{"--unshare-all", "--ro-bind", "/usr", "/usr"}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + d); err == nil {
			args = append(args, "--symlink", to, "/"+d)
		}
	}
	for _, p := range etcPaths() {
		args = append(args, "--ro-bind", p, p)
	}
	args = append(args, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/home/worker", "--symlink", "../tmp", "/var/tmp")
	for _, b := range s.binds(id) {
		flag := "--bind"
		if b.readOnly {
			flag = "--ro-bind"
		}
		args = append(args, flag, b.from, b.to)
	}
	return append(args, "--hostname", "worker", "--new-session", "--chdir", "/workspace/"+string(repoID), "/bin/true")
}

type bind struct {
	from, to string
	readOnly bool
}

func (s *station) binds(id policy.AllocationID) []bind {
	workspace := s.root.Abs(rootdir.Repository(id, repoID))
	s.r.must(os.MkdirAll(workspace, 0o755))
	return []bind{
		{workspace, "/workspace/" + string(repoID), false},
		{s.root.Abs(rootdir.Scratch(id)), "/scratch", false},
		{s.root.Abs(rootdir.Objects(repoID)), "/run/yoi/objects/" + string(repoID), true},
	}
}

// etcPaths is what this machine has of what the default sandbox takes from /etc.
func etcPaths() []string {
	var found []string
	for _, p := range []string{
		"alternatives", "ssl/certs", "ca-certificates", "ld.so.conf.d", "ld.so.cache", "ld.so.conf",
		"ssl/openssl.cnf", "mime.types", "protocols", "services", "debian_version",
	} {
		if _, err := os.Lstat("/etc/" + p); err == nil {
			found = append(found, "/etc/"+p)
		}
	}
	return found
}

func (r *room) bwrap(args []string) {
	if out, err := r.command("bwrap", args...).CombinedOutput(); err != nil {
		r.Fatalf("bwrap: %v\n%s", err, out)
	}
}

// residentMiB is a process' memory as the kernel counts it.
func residentMiB(r *room, pid int) float64 {
	b, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "statm"))
	r.must(err)
	var size, resident float64
	_, err = fmt.Sscan(string(b), &size, &resident)
	r.must(err)
	return resident * float64(os.Getpagesize()) / (1 << 20)
}

// enterAgainstNsenter compares a session in a running Worker, from the request to the
// reaped process, with a whole run of nsenter into the same namespaces, which applies
// neither ids nor filter nor Landlock.
func enterAgainstNsenter(r *room) {
	s, ids := launchStation(r, 1, 512)
	w := policy.NewWorkerID()
	req := helper.LaunchRequest{
		WorkerID: w, AllocationID: ids[0], Repositories: []helper.RepositoryTree{s.tree},
		Command: []string{"/bin/sleep", "100000"}, Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/worker"},
		RepositoryID: repoID, Root: policy.RootSystem, Logs: true,
	}
	l, err := s.remote.Launch(r.ctx, req, helper.LaunchFiles{Filter: s.filter})
	r.must(err)
	defer l.Pidfd.Close()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", l.Pidfd.Fd()))
	r.must(err)
	var pid string
	for line := range strings.Lines(string(info)) {
		if p, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid = strings.TrimSpace(p)
		}
	}
	req.Command = []string{"/bin/true"}
	own, peer := r.turns(r.runs(200),
		func() time.Duration {
			return timed(func() {
				id := policy.NewSessionID()
				_, err := s.remote.Enter(r.ctx, helper.EnterRequest{SessionID: id, Worker: req}, helper.EnterFiles{Filter: s.filter})
				r.must(err)
				o, err := s.remote.WaitSession(r.ctx, id)
				r.must(err)
				if o.ExitCode != 0 {
					r.Fatalf("/bin/true ended so: %+v", o)
				}
			})
		},
		func() time.Duration { return timed(func() { r.do("nsenter", "-t", pid, "-a", "/bin/true") }) })
	r.times("worker exec of /bin/true, request to reaped", "nsenter -a into the same sandbox", 1.5, own, peer)
	r.must(s.remote.Kill(r.ctx, w))
	_, err = s.remote.Wait(r.ctx, w)
	r.must(err)
}
