// Package rootdir knows the layout of a Runtime root and opens things in it.
//
// It exists because both sides of the privilege boundary work below the same
// directory, and neither may follow a symbolic link there: every open goes
// through openat2(2) with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and
// RESOLVE_NO_MAGICLINKS from one directory descriptor (Linux 5.6). A kernel
// without openat2 is refused; there is no weaker fallback.
//
// It does not say who may use a Runtime root, nor lock it: see package runtime.
package rootdir

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// The layout, relative to the Runtime root.
const (
	Database   = "runtime.db"
	Config     = "config.toml"
	Lock       = "lock"
	HelperLock = "lock.helper"
	RuntimeID  = "runtime-id" // for the helper's log, which knows no database
	Probe      = "probe.json"
	Tools      = "tools.json" // what policies' tools come to, for a helper of the same user
	Bundles    = "config-bundles"
	Workers    = "workers"
	Cache      = "repository-cache"
	GitCache   = "repository-cache/git"
	Workspaces = "execution-workspaces"
	BuildCache = "build-cache"
	Ledger     = "ledger"
	Patches    = "patches"
	Tmp        = "tmp"
	Trash      = "tmp/trash"
	// The image store is made by the first import.
	Images       = "image-store"
	ImageRecords = "image-store/images"
	ImageLayers  = "image-store/layers"   // with the ids of their images
	ImageOwned   = "image-store/owned"    // whose files are all the owner's
	ImageLock    = "image-store/lock"     // who changes the store
	ImageUseLock = "image-store/use.lock" // who counts its users
)

// Directories are made when a Runtime root is created, in this order.
func Directories() []string {
	return []string{Bundles, Workers, Cache, GitCache, Workspaces, BuildCache, Ledger, Tmp, Trash}
}

// Workspace, Worker and the others are the relative paths of one thing. The
// ids have been checked by policy.ValidID, so they are single components.
func Workspace(id policy.AllocationID) string { return Workspaces + "/" + string(id) }
func Repository(id policy.AllocationID, repo policy.RepositoryID) string {
	return Workspace(id) + "/root/" + string(repo)
}
func Layers(id policy.AllocationID, repo policy.RepositoryID) string {
	return Workspace(id) + "/mounts/" + string(repo)
}

// BaseIndex is the directory that holds the git index of a repository as it was
// before any Worker, where the strategy gives files inode numbers of their own.
func BaseIndex(id policy.AllocationID, repo policy.RepositoryID) string {
	return Workspace(id) + "/index/" + string(repo)
}

// External holds what an external command makes of a repository: the directory
// "tree".
func External(id policy.AllocationID, repo policy.RepositoryID) string {
	return Workspace(id) + "/external/" + string(repo)
}

// Bundle is a configuration bundle's directory, by the digits of its digest: the
// bundle is "tree" in it.
func Bundle(hex string) string { return Bundles + "/" + hex }

func Image(id string) string                { return ImageRecords + "/" + id }
func Scratch(id policy.AllocationID) string { return Workspace(id) + "/scratch" }
func Worker(id policy.WorkerID) string      { return Workers + "/" + string(id) }
func Objects(repo policy.RepositoryID) string {
	return GitCache + "/" + string(repo) + "/bare.git/objects"
}
func Tree(repo policy.RepositoryID, key string) string {
	return GitCache + "/" + string(repo) + "/trees/" + key
}

// Root is an open Runtime root.
type Root struct {
	// Dir is open for reading; Path is absolute and for the operator's eyes and
	// for git only.
	Dir  *os.File
	Path string
	// UID and GID own the directory: the daemon's user, or whoever ran yoi.
	UID, GID int
	// Device is st_dev.
	Device uint64
}

// Open opens an existing Runtime root. The path may go through symbolic links
// (/var/run and the like); what lies below may not.
func Open(p string) (*Root, error) {
	const op = "rootdir.open"
	if !path.IsAbs(p) {
		return nil, policy.Errorf(policy.CodeRuntimeRootInvalid, op, "the Runtime root is not an absolute path")
	}
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, policy.Errorf(policy.CodeRuntimeRootInvalid, op, "the Runtime root cannot be opened").Because(&fs.PathError{Op: "open", Path: p, Err: err})
	}
	f := os.NewFile(uintptr(fd), p)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, policy.Errorf(policy.CodeRuntimeRootInvalid, op, "the Runtime root cannot be read").Because(err)
	}
	if st.Mode&0o022 != 0 {
		f.Close()
		return nil, policy.Errorf(policy.CodeRuntimeRootUnsafe, op, "the Runtime root is writable by other users (mode %04o)", st.Mode&0o7777)
	}
	// Everything below is opened so; a kernel, or a container's filter, that has it
	// not would look like a broken root.
	if fd, err := unix.Openat2(int(f.Fd()), ".", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve}); err == nil {
		unix.Close(fd)
	} else if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		f.Close()
		return nil, policy.Errorf(policy.CodeKernelFeatureMissing, op, "the kernel lacks openat2, or a filter hides it").
			With("feature", "openat2").Because(os.NewSyscallError("openat2", err))
	}
	return &Root{Dir: f, Path: p, UID: int(st.Uid), GID: int(st.Gid), Device: st.Dev}, nil
}

// Close closes the directory.
func (r *Root) Close() error { return r.Dir.Close() }

// Abs is the absolute path of rel, for git's command line.
func (r *Root) Abs(rel string) string { return path.Join(r.Path, rel) }

const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// OpenFile opens rel beneath the root with open(2) flags; O_CLOEXEC is added.
// Errors are *fs.PathError and match the errno.
func (r *Root) OpenFile(rel string, flags int, mode uint32) (*os.File, error) {
	return OpenAt(r.Dir, rel, flags, mode)
}

// OpenDir opens the directory rel for reading.
func (r *Root) OpenDir(rel string) (*os.File, error) {
	return OpenAt(r.Dir, rel, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// OpenAt is OpenFile beneath any directory.
func OpenAt(dir *os.File, rel string, flags int, mode uint32) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: resolve}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), rel, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path.Base(rel)), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // EAGAIN: a rename raced the walk, openat2(2)
			continue
		case errors.Is(err, unix.ENOSYS):
			return nil, policy.Errorf(policy.CodeKernelFeatureMissing, "rootdir.open", "the kernel has no openat2 (Linux 5.6)").Because(err)
		}
		return nil, &fs.PathError{Op: "openat2", Path: rel, Err: err}
	}
}

// Mkdir makes the directory rel with the mode, owned by the Runtime root's
// owner, whatever the umask. The parent must exist; EEXIST is an error.
func (r *Root) Mkdir(rel string, mode uint32) (*os.File, error) {
	parent, err := r.OpenDir(path.Dir(rel))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	return r.MkdirAt(parent, path.Base(rel), mode)
}

// MkdirAt makes the directory name in parent and opens it.
func (r *Root) MkdirAt(parent *os.File, name string, mode uint32) (*os.File, error) {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return nil, &fs.PathError{Op: "mkdirat", Path: name, Err: unix.EINVAL}
	}
	if err := unix.Mkdirat(int(parent.Fd()), name, mode&0o700); err != nil {
		return nil, &fs.PathError{Op: "mkdirat", Path: name, Err: err}
	}
	d, err := OpenAt(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 && (r.UID != 0 || r.GID != 0) {
		if err := d.Chown(r.UID, r.GID); err != nil {
			d.Close()
			return nil, err
		}
	}
	if mode&^0o700 != 0 {
		if err := d.Chmod(fs.FileMode(mode)); err != nil {
			d.Close()
			return nil, err
		}
	}
	return d, nil
}

// Ensure makes rel and its parents where they are missing, with mode 0700.
func (r *Root) Ensure(rel string) (*os.File, error) {
	d, err := r.OpenDir(rel)
	if !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	if parent := path.Dir(rel); parent != "." {
		p, err := r.Ensure(parent)
		if err != nil {
			return nil, err
		}
		p.Close()
	}
	d, err = r.Mkdir(rel, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return r.OpenDir(rel)
	}
	return d, err
}

// Exists reports whether rel names anything.
func (r *Root) Exists(rel string) (bool, error) {
	f, err := r.OpenFile(rel, unix.O_PATH, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// WriteFile replaces rel with content, whole or not at all: a temporary file
// beside it, fsync, rename, fsync of the directory.
func (r *Root) WriteFile(rel string, content []byte, mode uint32) error {
	dir, err := r.OpenDir(path.Dir(rel))
	if err != nil {
		return err
	}
	defer dir.Close()
	name := path.Base(rel)
	tmp := policy.NewID("." + name + ".")
	f, err := OpenAt(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = unix.Renameat(int(dir.Fd()), tmp, int(dir.Fd()), name)
	}
	if err != nil {
		_ = unix.Unlinkat(int(dir.Fd()), tmp, 0) // the first error is the one to report
		return err
	}
	return dir.Sync()
}

// WriteNew makes the file rel, durably. Nobody may take it for whole before
// WriteNew has returned: a crash can leave a part of it.
func (r *Root) WriteNew(rel string, content []byte, mode uint32) error {
	dir, err := r.OpenDir(path.Dir(rel))
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := OpenAt(dir, path.Base(rel), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err == nil && !syncsNames(f) {
		err = dir.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncsNames reports whether fsync(2) of a new file makes its name durable too, and
// its directory's if that is new. ext4 and xfs commit or force one log for all of
// it; btrfs logs a new inode with its new ancestors. There an fsync of the directory
// as well would on btrfs be a whole transaction, ten times as dear.
func syncsNames(f *os.File) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) != nil {
		return false
	}
	switch int64(st.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC:
		return true
	}
	return false
}

// ReadFile reads rel, at most limit bytes.
func (r *Root) ReadFile(rel string, limit int64) ([]byte, error) {
	f, err := r.OpenFile(rel, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > limit {
		return nil, &fs.PathError{Op: "read", Path: rel, Err: unix.EFBIG}
	}
	b := make([]byte, st.Size())
	n, err := f.ReadAt(b, 0)
	if n == len(b) {
		err = nil
	}
	return b[:n], err
}
