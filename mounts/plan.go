package mounts

import "os"

// Source is a tree (or file) of the host. Mount takes precedence over Path.
type Source struct {
	// Path is an absolute host path, resolved in the child's private copy of the
	// host's mount tree, with the child's rights. Symbolic links are followed.
	Path string
	// Beneath is resolved under Path with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS.
	Beneath string
	// Mount is a detached mount that CloneDetached made. One descriptor serves one
	// launch: attaching it consumes it. The caller closes it after the launch.
	Mount *os.File
}

// Attr are a mount's attributes (mount_setattr(2)). They are added to those
// that the source has: a mount never becomes weaker than the host's.
type Attr struct{ ReadOnly, NoSuid, NoDev, NoExec bool }

// Op is one step of a Plan: Dir, Symlink, File, Bind, Tmpfs, Proc, DevPts, Dev,
// Overlay, Secrets, Mask or ReadOnlyPath. Its target is an absolute path of the sandbox.
type Op interface {
	// Where is the target.
	Where() string
	// Kind is the name that diagnostics use.
	Kind() string
}

type (
	// Dir makes a directory, with missing parents (mode 0755).
	Dir struct {
		Target string
		Mode   uint32
	}
	// Symlink makes a symbolic link holding To.
	Symlink struct{ Target, To string }
	// File makes a regular file.
	File struct {
		Target  string
		Mode    uint32
		Content []byte
	}
	// Bind attaches a copy of Source's mount. Its root's path is readable in
	// mountinfo: see the package comment.
	Bind struct {
		Target    string
		Source    Source
		Recursive bool // with what is mounted below; needed where the host has mounts there
		IsFile    bool // the source is not a directory
		Optional  bool // a missing source leaves the target out
		Attr      Attr
	}
	// Tmpfs attaches a fresh tmpfs. Zero sizes mean the kernel's default.
	Tmpfs struct {
		Target    string
		Mode      uint32
		SizeBytes uint64
		Inodes    uint64
		Worker    bool // its top belongs to the Worker, not to the sandbox's root
		Attr      Attr
	}
	// Proc attaches the proc file system of the sandbox's pid namespace, nosuid,
	// nodev, noexec and hidepid=invisible: PID 1 is not to be seen.
	Proc struct{ Target string }
	// DevPts attaches a private devpts with its own ptmx.
	DevPts struct{ Target string }
	// Dev makes a minimal /dev: null zero full random urandom tty (binds of the
	// host's nodes), fd stdin stdout stderr ptmx (links), pts (DevPts) and shm, a
	// writable noexec part of the root's tmpfs of ShmBytes; zero is 64 MiB.
	Dev struct {
		Target   string
		ShmBytes uint64
	}
	// Overlay attaches an overlay with the option userxattr. Lower is listed
	// uppermost first. Upper and Work are names beneath Data; an empty Data makes
	// a read-only overlay. Without Lower an empty directory is the lower layer: Bottom,
	// a name beneath Data too. If that is empty it is one of another file system, and
	// directories have inode numbers of the overlay's own, another device than files
	// (overlayfs.rst, "Inode properties").
	Overlay struct {
		Target      string
		Lower       []Source
		Data        Source
		Upper, Work string
		Bottom      string
		// Volatile leaves out every sync of the upper layer's file system: fsync(2)
		// inside does nothing, and the mount's end does not wait for the disk. The
		// work directory must hold no "work/incompat" of an earlier such mount.
		Volatile bool
		Attr     Attr
	}
	// Secrets attaches a directory of files that the Worker alone reads (0400), on a
	// read-only mount. It is a ramfs: unlike a tmpfs's, its pages are never written to
	// swap, and it can be mounted so in a user namespace (tmpfs's "noswap" cannot).
	Secrets struct {
		Target string
		Files  []SecretFile
	}
	// Mask hides an entry of a Proc: an empty read-only directory or /dev/null is
	// attached on it. An absent entry is skipped.
	Mask struct {
		Target string
		IsDir  bool
	}
	// ReadOnlyPath makes an entry of a Proc read-only. Absent entries are skipped.
	ReadOnlyPath struct{ Target string }
)

// SecretFile is one file of Secrets. Content is read at the launch, and is the
// caller's to wipe.
type SecretFile struct {
	Name    string
	Content []byte
}

// Plan is a sandbox's whole root file system. It is carried out in order on a
// fresh tmpfs, which is made read-only at the end.
type Plan struct {
	Ops []Op
	// Layers, uppermost first, are read-only trees that the root shows below what
	// Ops make: the tmpfs is the uppermost layer of an overlay, so that a directory
	// or file of the plan is one whatever the layers have at its place. No link of a
	// layer can lead a mount elsewhere.
	Layers []Source
	// RootBytes and RootInodes bound the root tmpfs; zero is 16 MiB and 16384.
	RootBytes, RootInodes uint64
}

func (o Dir) Where() string          { return o.Target }
func (o Symlink) Where() string      { return o.Target }
func (o File) Where() string         { return o.Target }
func (o Bind) Where() string         { return o.Target }
func (o Tmpfs) Where() string        { return o.Target }
func (o Proc) Where() string         { return o.Target }
func (o DevPts) Where() string       { return o.Target }
func (o Dev) Where() string          { return o.Target }
func (o Overlay) Where() string      { return o.Target }
func (o Secrets) Where() string      { return o.Target }
func (o Mask) Where() string         { return o.Target }
func (o ReadOnlyPath) Where() string { return o.Target }

func (Dir) Kind() string          { return "directory" }
func (Symlink) Kind() string      { return "symbolic link" }
func (File) Kind() string         { return "file" }
func (Bind) Kind() string         { return "bind mount" }
func (Tmpfs) Kind() string        { return "tmpfs" }
func (Proc) Kind() string         { return "proc" }
func (DevPts) Kind() string       { return "devpts" }
func (Dev) Kind() string          { return "device directory" }
func (Overlay) Kind() string      { return "overlay" }
func (Secrets) Kind() string      { return "directory of secrets" }
func (Mask) Kind() string         { return "mask" }
func (ReadOnlyPath) Kind() string { return "read-only path" }
