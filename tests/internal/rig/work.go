package rig

import (
	"bufio"
	"io"
	"os/exec"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// Work runs a shell script on a workspace to its end, and returns what it prints.
func (y Yoi) Work(t testing.TB, id policy.AllocationID, script string) string {
	t.Helper()
	var w struct{ ID string }
	y.Run(t, "worker", "spawn", "--json", string(id), "--", "sh", "-c", script).Want(t, 0).JSON(t, &w)
	y.OK(t, "worker", "wait", w.ID)
	return y.OK(t, "worker", "logs", w.ID)
}

// Workspace registers a repository, once, and makes a workspace of it. A nil change
// leaves the request as it is.
func (d *Daemons) Workspace(t testing.TB, repo string, change func(*runtime.CreateWorkspaceRequest)) runtime.Workspace {
	t.Helper()
	r, err := d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: repo})
	if err != nil {
		t.Fatalf("adding the repository: %v\n%s", err, d.Runtimed.Log())
	}
	req := runtime.CreateWorkspaceRequest{Repositories: []runtime.RepositoryRequest{{RepositoryID: r.ID}}}
	if change != nil {
		change(&req)
	}
	ws, err := d.Client.CreateWorkspace(t.Context(), req)
	if err != nil {
		t.Fatalf("creating a workspace: %v\n%s\n%s", err, d.Runtimed.Log(), d.Helper.Log())
	}
	return ws
}

// Spawn starts a shell script as a Worker.
func (d *Daemons) Spawn(t testing.TB, ws policy.AllocationID, script string) runtime.Worker {
	t.Helper()
	w, err := d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws, Command: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatalf("spawning: %v\n%s\n%s", err, d.Runtimed.Log(), d.Helper.Log())
	}
	return w
}

// Stdin is cmd's standard input, which lasts until it is closed.
func Stdin(t testing.TB, cmd *exec.Cmd) io.Closer {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// Begin starts cmd and returns the first line that it prints: it is that far. What
// it prints later is for nobody. The test's end is its end, if not before.
func Begin(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // most often for the second time
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%q ended before it said anything: %q, %v", cmd.Args, line, err)
	}
	return line
}
