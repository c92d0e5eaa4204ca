package helper

import (
	"os"
	"os/exec"
	"testing"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
)

// sleeper is another process, which has files open.
func sleeper(t *testing.T, files ...*os.File) int {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.ExtraFiles = files
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// TestOnlyTheHolderOfTheLockIsTheWorker: a record that names another process of
// the host, with everything right about it, gets no signal from a root helper.
func TestOnlyTheHolderOfTheLockIsTheWorker(t *testing.T) {
	root, err := rootdir.Create(t.TempDir() + "/root")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	l := &Local{root: root, bootID: "boot"}
	dir, err := root.Ensure(rootdir.Worker("wk-1") + "/metadata")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	lock, err := l.newFile(dir, "lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	l.privileged = true
	holder, other := sleeper(t, lock), sleeper(t)
	found := func(r ledger.Resource) bool {
		f := l.openProcess(r)
		if f != nil {
			f.Close()
		}
		return f != nil
	}
	r := ledger.Resource{Attrs: map[string]string{"worker": "wk-1"}}
	if found(r) {
		t.Error("a process was found that nothing names")
	}
	r.Identity = l.processIdentity(other)
	if found(r) {
		t.Error("a process without the lock was taken for the Worker")
	}
	r.Identity = l.processIdentity(holder)
	if !found(r) {
		t.Error("the process that has the lock open was not found")
	}
	// Where a crash came before the ledger's record, the file beside the lock tells.
	r.Identity = ledger.Identity{}
	if err := l.writeIdentity(r, l.processIdentity(holder)); err != nil {
		t.Fatal(err)
	}
	if !found(r) {
		t.Error("the process that the file names was not found")
	}
}
