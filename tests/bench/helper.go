package main

import (
	"bytes"
	"context"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// repoID is the repository of every workspace here.
const repoID = policy.RepositoryID("bench")

// station is a Runtime root with a running yoi-helper, its client, and
// workspaces of a small repository.
type station struct {
	r      *room
	root   *rootdir.Root
	remote *helper.Remote
	pid    int
	filter []byte
	tree   helper.RepositoryTree
	null   *os.File
}

// station starts the helper as the daemons' set-up has it: root, its own
// process, a socket between.
func (r *room) station(fs string) *station {
	dir := filepath.Join(fs, "rt")
	root, err := rootdir.Create(dir)
	r.must(err)
	r.Cleanup(func() { root.Close() })
	socket := filepath.Join(fs, "helper")
	cmd := r.command(rig.Program(r, "yoi-helper"), "--runtime-root", dir, "--socket", socket)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	r.must(cmd.Start())
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is asked for below
		close(exited)
	}()
	remote := helper.Dial(socket)
	r.Cleanup(func() {
		remote.Close()
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-exited
		if code := cmd.ProcessState.ExitCode(); code != 0 && r.ctx.Err() == nil {
			r.Errorf("yoi-helper ended with %d\n%s", code, log.String())
		}
	})
	s := &station{r: r, root: root, remote: remote, pid: cmd.Process.Pid}
	for {
		if _, err = remote.Live(r.ctx); err == nil {
			break
		}
		select {
		case <-exited:
			r.Fatalf("yoi-helper does not start\n%s", log.String())
		case <-time.After(5 * time.Millisecond):
		}
		r.goOn()
	}
	s.filter, err = seccomp.Filter(policy.SandboxPolicy{}.Normalize())
	r.must(err)
	s.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0)
	r.must(err)
	r.Cleanup(func() { s.null.Close() })
	return s
}

// useRepo fills the cache with the pristine tree of a repository's HEAD.
func (s *station) useRepo(repo testenv.Repo, strategy policy.StrategyName) {
	top := func(f func(*os.File, string) error) func(context.Context, string) error {
		return func(_ context.Context, dir string) error {
			parent, err := s.root.OpenDir(path.Dir(strings.TrimPrefix(dir, s.root.Path+"/")))
			if err != nil {
				return err
			}
			defer parent.Close()
			return f(parent, path.Base(dir))
		}
	}
	cache, err := gitcache.Open(gitcache.Options{
		Root: s.root.Path, MakeTop: top(cow.MakeTop), SealTop: top(cow.SealTop), RemoveTop: top(cow.RemoveTop),
	})
	s.r.must(err)
	point, _, err := cache.Resolve(s.r.ctx, gitcache.Source{ID: repoID, URL: repo.Dir}, policy.Selector{}.Normalize(), gitcache.ResolveOptions{})
	s.r.must(err)
	tree, _, err := cache.Pristine(s.r.ctx, point)
	s.r.must(err)
	s.tree = helper.RepositoryTree{RepositoryID: repoID, TreeKey: tree.Key, Strategy: strategy}
	s.r.must(tree.Close())
}

// workspace makes an Execution Workspace.
func (s *station) workspace() policy.AllocationID {
	id := policy.NewAllocationID()
	res, err := s.remote.Materialize(s.r.ctx, helper.MaterializeRequest{AllocationID: id, Repositories: []helper.RepositoryTree{s.tree}})
	s.r.must(err)
	s.tree.Strategy = res.Repositories[0].Strategy
	return id
}

// launch runs /bin/true in the full default sandbox, from the request to the
// recorded outcome. Like a daemon's Worker it outlives a helper's crash and has
// log files.
func (s *station) launch(id policy.AllocationID) { s.launchLimited(id, policy.Limits{}) }

func (s *station) launchLimited(id policy.AllocationID, limits policy.Limits) {
	w := policy.NewWorkerID()
	l, err := s.remote.Launch(s.r.ctx, helper.LaunchRequest{
		WorkerID: w, AllocationID: id, Repositories: []helper.RepositoryTree{s.tree},
		Command: []string{"/bin/true"}, Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/worker"},
		RepositoryID: repoID, Root: policy.RootSystem, Logs: true, Limits: limits,
	}, helper.LaunchFiles{Filter: s.filter})
	s.r.must(err)
	l.Pidfd.Close()
	o, err := s.remote.Wait(s.r.ctx, w)
	s.r.must(err)
	if o.ExitCode != 0 || o.Lost {
		s.r.Fatalf("/bin/true ended so: %+v", o)
	}
}
