package rootdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Create makes a Runtime root at p, or completes one that a crash left half
// made, and opens it. Missing parents are made with mode 0755, the root itself
// with 0700. A directory that holds anything else is refused, so that a typing
// error does not turn somebody's home into a Runtime root.
func Create(p string) (*Root, error) {
	const op = "rootdir.create"
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return nil, cannotMake(op, "the Runtime root's parent", err)
	}
	if err := os.Mkdir(p, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, cannotMake(op, "the Runtime root", err)
	}
	r, err := Open(p)
	if err != nil {
		return nil, err
	}
	if err := r.complete(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Root) complete() error {
	const op = "rootdir.create"
	if euid := os.Geteuid(); euid != 0 && euid != r.UID {
		return policy.Errorf(policy.CodeRuntimeRootUnsafe, op, "the Runtime root belongs to another user (uid %d)", r.UID)
	}
	names, err := r.Dir.Readdirnames(-1)
	if err != nil {
		return policy.Errorf(policy.CodeRuntimeRootInvalid, op, "the Runtime root cannot be read").Because(err)
	}
	if _, err := r.Dir.Seek(0, 0); err != nil {
		return policy.AsDiagnostic(err)
	}
	ours := map[string]bool{Lock: true, HelperLock: true, Config: true, Database: true, Database + "-wal": true, Database + "-shm": true, Database + "-journal": true, Probe: true, Patches: true, Images: true, "lost+found": true}
	for _, d := range Directories() {
		ours[d] = true
	}
	found := 0
	for _, n := range names {
		if ours[n] {
			found++
		}
	}
	if len(names) > 0 && found == 0 {
		return policy.Errorf(policy.CodeRuntimeRootInvalid, op, "the directory is not empty and is not a Runtime root")
	}
	if found >= 7 {
		return nil // whole already: the warm path makes no system call more
	}
	for _, d := range Directories() {
		f, err := r.Ensure(d)
		if err != nil {
			return cannotMake(op, d, err)
		}
		f.Close()
	}
	return r.Dir.Sync()
}

// NoRoom is the diagnostic of a full file system or a quota that is used up, nil
// for every other error.
func NoRoom(op string, err error) *policy.Diagnostic {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return policy.Errorf(policy.CodeDiskFull, op, "the Runtime root's file system is full").Because(err)
	case errors.Is(err, unix.EDQUOT):
		return policy.Errorf(policy.CodeQuotaExceeded, op, "the disk quota is used up").Because(err)
	}
	return nil
}

// Failed is err as a diagnostic: itself if it is one, NoRoom's, or else internal with
// that message.
func Failed(op, message string, err error) error {
	var d *policy.Diagnostic
	if err == nil || errors.As(err, &d) {
		return err
	}
	if d := NoRoom(op, err); d != nil {
		return d
	}
	return policy.Errorf(policy.CodeInternal, op, "%s", message).Because(err)
}

func cannotMake(op, what string, err error) error {
	if d := NoRoom(op, err); d != nil {
		return d
	}
	return policy.Errorf(policy.CodeRuntimeRootInvalid, op, "%s cannot be made", what).Because(err)
}
