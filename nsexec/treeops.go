package nsexec

import (
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// absent are the errnos of a path that leads nowhere.
var absent = []uint16{uint16(unix.ENOENT), uint16(unix.ENOTDIR)}

func (b *script) file(o mounts.File) {
	b.Add(unix.SYS_OPENAT, slotRoot.Arg(), b.rel(o.Target),
		num(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC), num(o.Mode)).Save(slotFD)
	if len(o.Content) > 0 {
		b.Add(unix.SYS_WRITE, slotFD.Arg(), b.Bytes(o.Content), num(len(o.Content))).Expect(uint64(len(o.Content)))
	}
	b.Add(unix.SYS_CLOSE, slotFD.Arg())
}

// openTree leaves a private copy of the source's mount in slotTree, or its
// detached mount as it is. optional counts the operations to leave out when
// the source is missing; it may be patched later by the returned calls' Skip.
func (b *script) openTree(s mounts.Source, recursive, optional bool, rest int) {
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_NO_AUTOMOUNT
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	tolerate := func(c replay.Call, more int) replay.Call {
		if optional {
			c.Tolerate(absent...).Skip(rest + more)
		}
		return c
	}
	switch {
	case s.Mount != nil:
		b.Add(unix.SYS_FCNTL, num(s.Mount.Fd()), num(unix.F_DUPFD_CLOEXEC), num(3)).Save(slotTree)
	case s.Beneath == "":
		tolerate(b.Add(unix.SYS_OPEN_TREE, atCwd, b.Str(s.Path), num(flags)).Save(slotTree), 0)
	default:
		how := replay.Struct(b.Program, unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
		tolerate(b.Add(unix.SYS_OPENAT, atCwd, b.Str(s.Path), num(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)).Save(slotFD), 4)
		tolerate(b.Add(unix.SYS_OPENAT2, slotFD.Arg(), b.Str(s.Beneath), how, num(unix.SizeofOpenHow)).Save(slotFD2).Retry(), 3)
		b.Add(unix.SYS_OPEN_TREE, slotFD2.Arg(), b.empty, num(flags|unix.AT_EMPTY_PATH)).Save(slotTree)
		b.Add(unix.SYS_CLOSE, slotFD2.Arg())
		b.Add(unix.SYS_CLOSE, slotFD.Arg())
	}
}

func (b *script) bind(o mounts.Bind, made map[string]bool) {
	rest := 0
	count := func(n int, on bool) {
		if on {
			rest += n
		}
	}
	bits := o.Attr.Bits()
	newTarget := !made[o.Target]
	count(1, bits != 0)
	count(1, newTarget)
	rest += 2 // attach, close
	b.openTree(o.Source, o.Recursive, o.Optional, rest)
	if bits != 0 {
		flags := unix.AT_EMPTY_PATH
		if o.Recursive {
			flags |= unix.AT_RECURSIVE
		}
		b.setattr(slotTree.Arg(), b.empty, flags, unix.MountAttr{Attr_set: bits})
	}
	if newTarget && o.IsFile {
		b.emptyFile(o.Target)
	} else if newTarget {
		b.mkdir(o.Target, 0o755)
	}
	b.attach(slotTree.Arg(), slotRoot.Arg(), b.rel(o.Target))
	b.Add(unix.SYS_CLOSE, slotTree.Arg())
}

func (b *script) emptyFile(target string) {
	b.Add(unix.SYS_MKNODAT, slotRoot.Arg(), b.rel(target), num(unix.S_IFREG|0o444), num(0))
}

func (b *script) tmpfs(o mounts.Tmpfs, made map[string]bool) {
	opts := []option{{"mode", "0" + strconv.FormatUint(uint64(o.Mode), 8)}}
	if o.SizeBytes > 0 {
		opts = append(opts, option{"size", strconv.FormatUint(o.SizeBytes, 10)})
	}
	if o.Inodes > 0 {
		opts = append(opts, option{"nr_inodes", strconv.FormatUint(o.Inodes, 10)})
	}
	if o.Worker {
		opts = append(opts, option{"uid", strconv.FormatUint(uint64(b.spec.uid()), 10)},
			option{"gid", strconv.FormatUint(uint64(b.spec.gid()), 10)})
	}
	b.newfs("tmpfs", int(o.Attr.Bits()), opts...)
	b.mountOn(o.Target, made)
}

// secrets fills the directory while nobody but us can reach it. The files become
// the Worker's own only when they are whole; the mount is read-only by then, so
// they keep their modes too.
func (b *script) secrets(o mounts.Secrets, made map[string]bool) {
	b.newfs("ramfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, option{"mode", "0500"})
	for _, f := range o.Files {
		b.Add(unix.SYS_OPENAT, slotTree.Arg(), b.Str(f.Name),
			num(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC), num(0o400)).Save(slotFD)
		if len(f.Content) > 0 {
			b.Add(unix.SYS_WRITE, slotFD.Arg(), b.Bytes(f.Content), num(len(f.Content))).Expect(uint64(len(f.Content)))
		}
		b.giveToWorker(slotFD.Arg())
		b.Add(unix.SYS_CLOSE, slotFD.Arg())
	}
	b.giveToWorker(slotTree.Arg())
	b.setattr(slotTree.Arg(), b.empty, unix.AT_EMPTY_PATH, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	b.mountOn(o.Target, made)
}

// giveToWorker changes the owner of what a descriptor is open on. (fchown(2) takes no O_PATH
// one, as a detached mount's is.)
func (b *script) giveToWorker(fd replay.Arg) {
	b.Add(unix.SYS_FCHOWNAT, fd, b.empty, num(b.spec.uid()), num(b.spec.gid()), num(unix.AT_EMPTY_PATH))
}

var (
	devNodes = []string{"null", "zero", "full", "random", "urandom", "tty"}
	devLinks = [][2]string{{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"},
		{"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"}}
)

// dev fills a plain directory of the root, which is read-only in the end.
func (b *script) dev(o mounts.Dev, made map[string]bool) {
	if !made[o.Target] {
		b.mkdir(o.Target, 0o755)
		made[o.Target] = true
	}
	for _, n := range devNodes {
		target := path.Join(o.Target, n)
		b.placeholder(target, true, made)
		b.Add(unix.SYS_OPEN_TREE, atCwd, b.Str("/dev/"+n), num(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)).Save(slotTree)
		b.attach(slotTree.Arg(), slotRoot.Arg(), b.rel(target))
		b.Add(unix.SYS_CLOSE, slotTree.Arg())
	}
	for _, l := range devLinks {
		b.symlink(path.Join(o.Target, l[0]), l[1], made)
	}
	b.one(mounts.DevPts{Target: path.Join(o.Target, "pts")}, made)
	if shm := path.Join(o.Target, "shm"); made[shm] {
		b.one(mounts.Tmpfs{Target: shm, Mode: 0o1777, SizeBytes: shmSize(o), Attr: mounts.Attr{NoSuid: true, NoDev: true, NoExec: true}}, made)
	} else {
		b.shm(shm)
	}
}

func (b *script) symlink(target, to string, made map[string]bool) {
	if !made[target] {
		b.Add(unix.SYS_SYMLINKAT, b.Str(to), slotRoot.Arg(), b.rel(target))
		made[target] = true
	}
}

// placeholder makes the empty directory or file that a mount is attached to.
func (b *script) placeholder(target string, isFile bool, made map[string]bool) {
	switch {
	case made[target]:
		return
	case isFile:
		b.emptyFile(target)
	default:
		b.mkdir(target, 0o755)
	}
	made[target] = true
}

// shm makes a writable mount of a directory of the root's tmpfs, whose own mount
// is read-only in the end: a file system less to make and to destroy, which is
// most of what a tmpfs costs. A Worker that fills it harms only itself, since
// nobody else writes to that file system.
func (b *script) shm(target string) {
	b.mkdir(target, 0o1777)
	b.Add(unix.SYS_OPEN_TREE, slotRoot.Arg(), b.rel(target), num(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)).Save(slotTree)
	b.setattr(slotTree.Arg(), b.empty, unix.AT_EMPTY_PATH, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOEXEC})
	b.attach(slotTree.Arg(), slotRoot.Arg(), b.rel(target))
	b.Add(unix.SYS_CLOSE, slotTree.Arg())
}

// shmBytes is what the plan's Dev operations may use of the root's tmpfs.
func shmBytes(p mounts.Plan) (n uint64) {
	for _, op := range p.Ops {
		if o, ok := op.(mounts.Dev); ok {
			n += shmSize(o)
		}
	}
	return n
}

func shmSize(o mounts.Dev) uint64 {
	if o.ShmBytes == 0 {
		return 64 << 20
	}
	return o.ShmBytes
}

// overlay attaches its layers below the stage and names them relative to it:
// a detached layer cannot be given to overlayfs before Linux 6.13, and a name
// of the host would be readable in mountinfo.
func (b *script) overlay(o mounts.Overlay, made map[string]bool) {
	b.Add(unix.SYS_FCHDIR, slotStage.Arg())
	var lower []string
	for _, l := range o.Lower {
		lower = append(lower, b.layer(l))
	}
	data := ""
	if o.Data != (mounts.Source{}) {
		data = b.layer(o.Data)
		if len(lower) == 0 && o.Bottom != "" {
			lower = append(lower, data+"/"+o.Bottom)
		}
	}
	// Without an upper directory overlayfs wants two layers.
	if len(lower) == 0 || (len(lower) == 1 && data == "") {
		lower = append(lower, maskDir)
	}
	opts := []option{{"lowerdir", strings.Join(lower, ":")}}
	attr := o.Attr.Bits()
	if data == "" {
		attr |= unix.MOUNT_ATTR_RDONLY
	} else {
		opts = append(opts, option{"upperdir", data + "/" + o.Upper}, option{"workdir", data + "/" + o.Work})
	}
	if o.Volatile { // Linux 5.10
		opts = append(opts, option{key: "volatile"})
	}
	// Trusted xattrs are not to be had in a user namespace (overlayfs, Linux 5.11).
	opts = append(opts, option{key: "userxattr"})
	// overlayfs makes files with the credentials of whoever mounted it. An
	// idmapped layer maps only the Worker's ids to the disk's, so as anybody else
	// the work directory cannot be made (EOVERFLOW) and the overlay comes out
	// read-only. NO_SETUID_FIXUP keeps the capabilities over the change.
	b.Add(unix.SYS_PRCTL, num(unix.PR_SET_SECUREBITS), num(noSetuidFixup), num(0), num(0), num(0))
	b.Add(unix.SYS_SETFSGID, num(b.spec.gid()))
	b.Add(unix.SYS_SETFSUID, num(b.spec.uid()))
	b.newfs("overlay", int(attr), opts...)
	if attr&unix.MOUNT_ATTR_RDONLY == 0 {
		// What has no room for its work directory comes out read-only too (ovl_get_workdir,
		// Linux 6.1), and says nothing.
		b.Add(unix.SYS_FACCESSAT2, slotTree.Arg(), b.empty, num(unix.W_OK), num(unix.AT_EMPTY_PATH)).Tolerate(uint16(unix.EACCES))
	}
	// Back, which without a mapping of 0 changes nothing. A change would make the
	// caller, whose memory this is, undumpable (prctl(2)): an ordinary one could write
	// no further maps.
	b.Add(unix.SYS_SETFSUID, num(b.setupUID))
	b.Add(unix.SYS_SETFSGID, num(b.setupGID))
	b.mountOn(o.Target, made)
}

// noSetuidFixup is SECBIT_NO_SETUID_FIXUP, capabilities(7).
const noSetuidFixup = 4

// layer attaches a source below the stage and returns its name there.
func (b *script) layer(s mounts.Source) string {
	b.layers++
	name := strconv.Itoa(b.layers)
	b.openTree(s, false, false, 0)
	b.onStage(name)
	b.Add(unix.SYS_CLOSE, slotTree.Arg())
	return name
}

// onStage attaches slotTree at a new directory of the stage.
func (b *script) onStage(name string) {
	b.Add(unix.SYS_MKDIRAT, slotStage.Arg(), b.Str(name), num(0o755))
	b.attach(slotTree.Arg(), slotStage.Arg(), b.Str(name))
}

// target opens the entry of a proc without following a link; absent ones skip
// the next n operations.
func (b *script) target(at string, n int) {
	b.Add(unix.SYS_OPENAT, slotRoot.Arg(), b.rel(at), num(unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC), num(0)).
		Save(slotFD).Tolerate(absent...).Skip(n)
}

func (b *script) onTarget() {
	b.Add(unix.SYS_MOVE_MOUNT, slotTree.Arg(), b.empty, slotFD.Arg(), b.empty,
		num(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
	b.Add(unix.SYS_CLOSE, slotTree.Arg())
	b.Add(unix.SYS_CLOSE, slotFD.Arg())
}

func (b *script) mask(o mounts.Mask) {
	b.target(o.Target, 4+boolInt(o.IsDir))
	if o.IsDir {
		b.Add(unix.SYS_OPEN_TREE, slotStage.Arg(), b.Str(maskDir), num(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)).Save(slotTree)
		b.setattr(slotTree.Arg(), b.empty, unix.AT_EMPTY_PATH, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	} else {
		b.Add(unix.SYS_OPEN_TREE, atCwd, b.Str("/dev/null"), num(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)).Save(slotTree)
	}
	b.onTarget()
}

func (b *script) readOnly(o mounts.ReadOnlyPath) {
	b.target(o.Target, 5)
	b.Add(unix.SYS_OPEN_TREE, slotFD.Arg(), b.empty,
		num(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)).Save(slotTree)
	b.setattr(slotTree.Arg(), b.empty, unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	b.onTarget()
}

// userLimits writes them while this proc's settings are still writable. The table is
// that of the writer's user namespace, which has CAP_SYS_RESOURCE there.
func (b *script) userLimits(proc string) {
	if len(b.spec.UserLimits) > 0 {
		b.step("limiting what the sandbox's user has", policy.CodeLimitsInvalid, "")
	}
	for _, l := range b.spec.UserLimits {
		v := strconv.Itoa(int(l.Max))
		b.Add(unix.SYS_OPENAT, slotRoot.Arg(), b.rel(proc+"/sys/user/"+l.Name), num(unix.O_WRONLY|unix.O_CLOEXEC), num(0)).Save(slotFD)
		b.Add(unix.SYS_WRITE, slotFD.Arg(), b.Str(v), num(len(v))).Expect(uint64(len(v)))
		b.Add(unix.SYS_CLOSE, slotFD.Arg())
	}
}

func boolInt(v bool) int {
	if v {
		return 1
	}
	return 0
}
