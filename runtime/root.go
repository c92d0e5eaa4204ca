package runtime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// DefaultRoot is the Runtime root of a caller who names none:
// ~/.yoi/runtimes/default/, or $XDG_DATA_HOME's when HOME is unset.
func DefaultRoot() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return "", policy.Errorf(policy.CodeRuntimeRootInvalid, "runtime.root", "the calling user has no home directory").
			WithHint("Name a directory with --runtime-root.").Because(err)
	}
	return filepath.Join(home, ".yoi", "runtimes", "default"), nil
}

// SystemRoot is the system unit's.
const SystemRoot = "/var/lib/yoi"

// absoluteRoot makes p absolute and resolves the symbolic links of what exists
// of it, so that "inside one another" can be decided by names.
func absoluteRoot(p string) (string, error) {
	if p == "" {
		return DefaultRoot()
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return "", policy.Errorf(policy.CodeRuntimeRootInvalid, "runtime.root", "the Runtime root is not a usable path").Because(err)
	}
	return abs, nil
}

// realPath resolves the symbolic links of the longest existing prefix of p.
func realPath(p string) string {
	rest := ""
	for dir := filepath.Clean(p); ; dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		if dir == filepath.Dir(dir) {
			return filepath.Clean(p)
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}

func inside(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// checkOverlap refuses a tree that lies inside the Runtime root, or the reverse
// (RT.2): one would be copied into, or deleted with, the other.
func checkOverlap(root, tree, what string) error {
	r, t := realPath(root), realPath(tree)
	switch {
	case inside(r, t):
		return policy.Errorf(policy.CodeRuntimeRootOverlap, "runtime.root", "the Runtime root lies inside %s", what)
	case inside(t, r):
		return policy.Errorf(policy.CodeRuntimeRootOverlap, "runtime.root", "%s lies inside the Runtime root", what)
	}
	return nil
}

// enclosingRepository returns the working tree that dir lies in, "" for none:
// a directory above it that holds a .git.
func enclosingRepository(dir string) string {
	for d := realPath(dir); d != filepath.Dir(d); d = filepath.Dir(d) {
		if _, err := os.Lstat(filepath.Join(d, ".git")); err == nil {
			return d
		}
	}
	return ""
}

// openRoot makes or opens the Runtime root and takes its lock: shared for an
// embedded run, of which many may use one root at once, exclusive for a daemon.
func openRoot(ctx context.Context, p string, exclusive bool) (*rootdir.Root, *os.File, error) {
	const op = "runtime.root"
	abs, err := absoluteRoot(p)
	if err != nil {
		return nil, nil, err
	}
	if repo := enclosingRepository(abs); repo != "" && !isHome(repo) {
		return nil, nil, policy.Errorf(policy.CodeRuntimeRootOverlap, op, "the Runtime root lies inside a repository's working tree")
	}
	root, err := rootdir.Create(abs)
	if err != nil {
		return nil, nil, err
	}
	lock, err := root.OpenFile(rootdir.Lock, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		root.Close()
		return nil, nil, policy.Errorf(policy.CodeRuntimeRootInvalid, op, "the Runtime root's lock cannot be opened").Because(err)
	}
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	if err := unix.Flock(int(lock.Fd()), how|unix.LOCK_NB); err != nil {
		lock.Close()
		root.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			who := "a daemon owns"
			if exclusive {
				who = "another process uses"
			}
			return nil, nil, policy.Errorf(policy.CodeRuntimeRootBusy, op, "%s this Runtime root", who).Because(err)
		}
		return nil, nil, policy.Errorf(policy.CodeRuntimeRootInvalid, op, "the Runtime root cannot be locked").Because(err)
	}
	return root, lock, ctx.Err()
}

// checkOwner refuses to make a tree that would not be the Runtime root's owner's,
// as by sudo on a user's root, or in a root of another group than the daemon's. A
// privileged helper maps the root's owner and group to the Worker's, and nothing
// else: the Worker could neither write there nor use git.
func (r *Runtime) checkOwner(ctx context.Context) error {
	if os.Geteuid() == r.root.UID && os.Getegid() == r.root.GID {
		return nil
	}
	p, err := r.helper.Probe(ctx)
	if err != nil || !p.Privileged {
		return err
	}
	return policy.Errorf(policy.CodeRuntimeRootUnsafe, "runtime.root", "the Runtime root belongs to %d:%d, and what yoi makes in it would belong to %d:%d",
		r.root.UID, r.root.GID, os.Geteuid(), os.Getegid()).WithHint("Run as its owner and with its group, or use a Runtime root of the calling user's own.")
}

// isHome tells a home directory kept in git (dotfiles), inside which the default
// Runtime root unavoidably lies.
func isHome(dir string) bool {
	home, err := os.UserHomeDir()
	return err == nil && realPath(home) == dir
}
