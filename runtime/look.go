package runtime

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

//go:embed look.sh
var lookScript string

// look is one question to git about a workspace, put in a sandbox of its own.
type look struct {
	ask   string // the question: see look.sh
	mount int    // which repository of the allocation
	args  []string
	// changed is where the files can differ, if that is known already.
	changed *helper.ChangedResult
	// limit is how many bytes of answer are taken at most.
	limit int64
	// within is how long git may take; 0 is lookLimit.
	within time.Duration
}

const (
	// lookLimit is enough for a cold tree of a million files, and bounds how long a
	// hostile one keeps a removal waiting.
	lookLimit = time.Minute
	// exportLimit also has the caller's reading in it.
	exportLimit = 10 * time.Minute
	// maxLooks is how many git programs, each with up to a gigabyte of temporary
	// objects, look at workspaces at once.
	maxLooks = 4
	// maxNoise bounds what is kept of git's messages.
	maxNoise = 8 << 10
)

// lookFailed tells whether it was the workspace's fault.
func lookFailed(err error) bool {
	return errors.Is(err, policy.CodeWorkspaceUnreadable) || errors.Is(err, policy.CodeResultTooLarge)
}

// look runs look.sh and copies its answer to out. What a Worker left in the
// workspace may make git fail, or lie about that workspace, and nothing else.
func (r *Runtime) look(ctx context.Context, a registry.Allocation, l look, out io.Writer) error {
	const op = "runtime.look"
	m, point := a.Mounts[l.mount], a.RepositoryPoints[l.mount]
	told, err := r.told(a, l)
	if err != nil {
		return err
	}
	select {
	case r.looks <- struct{}{}:
		defer func() { <-r.looks }()
	case <-ctx.Done():
		return policy.Errorf(policy.CodeCanceled, op, "looking at %s was canceled", a.ID).Because(ctx.Err())
	}
	if l.within == 0 {
		l.within = lookLimit
	}
	a.SandboxPolicy = policy.SandboxPolicy{}.Normalize()
	changed := r.changed(ctx, a, l)
	defer changed() // nothing may go on behind
	c := capture{limit: l.limit, stdin: func() []byte { return append(changedLists(changed()), told...) }}
	code, err := c.run(ctx, r, a, launch{
		id: policy.NewWorkerID(), repo: m.RepositoryID,
		command: append([]string{"/bin/sh", "-c", lookScript, "look", l.ask, string(m.RepositoryID), point.CommitID, point.TreeID}, l.args...),
		limits:  policy.Limits{WallClock: l.within}, readOnly: true, dieWithParent: true, unrecorded: true,
	}, out)
	noise := errors.New(strings.TrimSpace(c.noise.String()))
	switch {
	case err != nil:
		return err
	case code == 0:
		return nil
	case code == 4:
		return policy.Errorf(policy.CodeNothingToCollect, op, "%s has no commit of its own in %s", a.ID, m.RepositoryID)
	case code == 5:
		return policy.Errorf(policy.CodeSelectorMissing, op, "the revision names no commit in the workspace %s", a.ID).
			WithHint("See yoi ws commits.")
	case code == 3:
		return policy.Errorf(policy.CodeWorkspaceUnreadable, op, "%s has no git directory that can be read safely: it is absent, or holds pipes, sockets or devices", a.ID).Because(noise)
	}
	return policy.Errorf(policy.CodeWorkspaceUnreadable, op, "git cannot read the workspace %s", a.ID).Because(noise)
}

// told is what a look is told on its standard input, but for what changed has: each
// commit that need not be told again, on a line of its own, and those that the cache
// was given from a workspace once more, as such.
func (r *Runtime) told(a registry.Allocation, l look) ([]byte, error) {
	repo := a.Mounts[l.mount].RepositoryID
	known, err := r.cache.Known(repo, string(a.ID))
	if err != nil {
		return nil, err
	}
	collected, err := r.cache.Collected(repo)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, oid := range append(known, a.RepositoryPoints[l.mount].CommitID) {
		b.WriteString(oid + "\n")
	}
	for _, c := range collected {
		b.WriteString(c.CommitID + "\ncollected " + c.CommitID + "\n")
	}
	return b.Bytes(), nil
}

// staged are the questions for which look.sh stages the files as they are.
var staged = map[string]bool{"work": true, "diff": true, "patch": true, "tar": true, "pack": true}

// changed begins to find out where a look's workspace can differ from its point, and
// returns what waits for it. It goes on while the sandbox starts.
func (r *Runtime) changed(ctx context.Context, a registry.Allocation, l look) func() helper.ChangedResult {
	switch {
	case l.changed != nil:
		return func() helper.ChangedResult { return *l.changed }
	case !staged[l.ask]:
		return func() helper.ChangedResult { return helper.ChangedResult{} }
	}
	found := make(chan helper.ChangedResult, 1)
	go func() { found <- r.askChanged(ctx, a, l.mount) }()
	return sync.OnceValue(func() helper.ChangedResult { return <-found })
}

// askChanged asks the helper where a workspace can differ from its point, if it was
// made of just the point's tree.
func (r *Runtime) askChanged(ctx context.Context, a registry.Allocation, mount int) helper.ChangedResult {
	m, point := a.Mounts[mount], a.RepositoryPoints[mount]
	if len(point.Scope) > 0 || m.Tree != point.TreeKey() ||
		(a.DirtyStatePolicy != policy.CleanPointOnly && a.DirtyStatePolicy != policy.PatchArtifact) {
		return helper.ChangedResult{}
	}
	c, err := r.helper.Changed(ctx, helper.ChangedRequest{AllocationID: a.ID, Repository: treesOf(a)[mount]})
	if err != nil {
		r.log.Warn("a look takes every file", "allocation", a.ID, "error", err)
	}
	return c
}

// changedLists is what a look is told of it: a line with the numbers of paths to look at
// and of paths that are gone, and with the sizes of the two lists in bytes, and the
// lists; or that it has to look at every file.
func changedLists(c helper.ChangedResult) []byte {
	if !c.Known {
		return []byte("- - 0 0\n")
	}
	files, gone := terminated(c.Files), terminated(c.Gone)
	return slices.Concat(fmt.Appendf(nil, "%d %d %d %d\n", len(c.Files), len(c.Gone), len(files), len(gone)), files, gone)
}

// terminated joins paths, each with a NUL behind it.
func terminated(paths [][]byte) (b []byte) {
	for _, p := range paths {
		b = append(append(b, p...), 0)
	}
	return b
}

// capture runs an unrecorded command on an allocation.
type capture struct {
	stdin func() []byte // what it reads, when that is known
	limit int64
	noise bytes.Buffer // the beginning of its standard error
}

// run copies the command's output to out, and returns its exit code. A command
// that says more than the limit, or whose reader fails, is killed.
func (c *capture) run(ctx context.Context, r *Runtime, a registry.Allocation, l launch, out io.Writer) (code int, err error) {
	var ours, theirs [3]*os.File
	defer func() {
		for i := range ours {
			ours[i].Close() // nil is an error nobody needs
			theirs[i].Close()
		}
	}()
	for i := range ours {
		pr, pw, err := os.Pipe()
		if err != nil {
			return 0, policy.AsDiagnostic(err)
		}
		if ours[i], theirs[i] = pr, pw; i == 0 {
			ours[i], theirs[i] = pw, pr
		}
	}
	l.stdio = theirs
	_, launched, err := r.start(ctx, a, l)
	for _, f := range theirs {
		f.Close()
	}
	if err != nil {
		return 0, err
	}
	launched.Pidfd.Close()
	kill := func() { _ = r.helper.Kill(context.WithoutCancel(ctx), l.id) } // it may just have ended
	defer context.AfterFunc(ctx, kill)()
	go func() {
		_, _ = ours[0].Write(c.stdin()) // EPIPE: it needed no more
		ours[0].Close()
	}()
	quiet := make(chan struct{})
	go func() {
		defer close(quiet)
		_, _ = io.Copy(&c.noise, io.LimitReader(ours[2], maxNoise))
		_, _ = io.Copy(io.Discard, ours[2])
	}()
	n, cerr := io.Copy(out, io.LimitReader(ours[1], c.limit+1))
	if cerr != nil || n > c.limit {
		kill()
	}
	_, _ = io.Copy(io.Discard, ours[1])
	<-quiet
	o, err := r.helper.Wait(context.WithoutCancel(ctx), l.id)
	switch {
	case ctx.Err() != nil:
		return 0, policy.Errorf(policy.CodeCanceled, "runtime.look", "looking at %s was canceled", a.ID).Because(ctx.Err())
	case cerr != nil:
		return 0, policy.Errorf(policy.CodeCanceled, "runtime.look", "the output cannot be written").Because(cerr)
	case n > c.limit:
		return 0, policy.Errorf(policy.CodeResultTooLarge, "runtime.look", "the result is larger than %d bytes", c.limit)
	case err == nil && o.TimedOut:
		return 0, policy.Errorf(policy.CodeWorkspaceUnreadable, "runtime.look", "git has not finished looking at %s within %s", a.ID, l.limits.WallClock)
	}
	return o.ExitCode, err
}
