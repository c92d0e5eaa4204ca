package nsexec

import (
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

const (
	rootBytes  = 16 << 20
	rootInodes = 16384
	maskDir    = "mask"
)

// option is one fsconfig(2) string; an empty value makes it a flag.
type option struct{ key, value string }

// tree builds the plan's mounts below a tmpfs that is stacked on the copy of
// the host's root. Everything is attached by descriptor, so no name of the
// host is needed as a mount point.
func (b *script) tree() error {
	b.step("making the root file system", policy.CodeMountFailed, "/")
	if needsStage(b.spec.Plan) {
		b.newfs("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
			option{"mode", "0755"}, option{"size", strconv.Itoa(1 << 20)})
		b.attach(slotTree.Arg(), atCwd, b.slash)
		b.Add(unix.SYS_DUP, slotTree.Arg()).Save(slotStage)
		b.Add(unix.SYS_CLOSE, slotTree.Arg())
		b.Add(unix.SYS_MKDIRAT, slotStage.Arg(), b.Str(maskDir), num(0o555))
	}
	size, inodes := b.spec.Plan.RootBytes, b.spec.Plan.RootInodes
	if size == 0 {
		size = rootBytes
	}
	if inodes == 0 {
		inodes = rootInodes
	}
	size += shmBytes(b.spec.Plan)
	b.newfs("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, option{"mode", "0755"},
		option{"size", strconv.FormatUint(size, 10)}, option{"nr_inodes", strconv.FormatUint(inodes, 10)})
	made := map[string]bool{"/": true}
	if len(b.spec.Plan.Layers) > 0 {
		b.layeredRoot(made)
	} else {
		b.becomeRoot()
	}
	for _, op := range b.spec.Plan.Ops {
		b.step("making the "+op.Kind(), policy.CodeMountFailed, op.Where())
		b.one(op, made)
	}
	if b.spec.Logs.Dir != (mounts.Source{}) {
		b.logTree()
	}
	return nil
}

// becomeRoot stacks the mount in slotTree on "/" and keeps it in slotRoot.
func (b *script) becomeRoot() {
	b.attach(slotTree.Arg(), atCwd, b.slash)
	b.Add(unix.SYS_DUP, slotTree.Arg()).Save(slotRoot)
	b.Add(unix.SYS_CLOSE, slotTree.Arg())
}

func (b *script) one(op mounts.Op, made map[string]bool) {
	b.parents(op.Where(), made)
	switch o := op.(type) {
	case mounts.Dir:
		if !made[o.Target] {
			b.mkdir(o.Target, o.Mode)
		}
	case mounts.Symlink:
		b.symlink(o.Target, o.To, made)
	case mounts.File:
		if !made[o.Target] { // else it is in the root's uppermost layer
			b.file(o)
		}
	case mounts.Bind:
		b.bind(o, made)
	case mounts.Tmpfs:
		b.tmpfs(o, made)
	case mounts.Proc:
		b.newfs("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, option{"hidepid", "2"})
		b.mountOn(o.Target, made)
		b.userLimits(o.Target)
	case mounts.DevPts:
		b.newfs("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, option{"mode", "0620"}, option{"ptmxmode", "0666"})
		b.mountOn(o.Target, made)
	case mounts.Dev:
		b.dev(o, made)
	case mounts.Overlay:
		b.overlay(o, made)
	case mounts.Secrets:
		b.secrets(o, made)
	case mounts.Mask:
		b.mask(o)
	case mounts.ReadOnlyPath:
		b.readOnly(o)
	}
	made[op.Where()] = true
}

// rel is target relative to the root's descriptor.
func (b *script) rel(target string) replay.Arg { return b.Str(target[1:]) }

func (b *script) mkdir(target string, mode uint32) {
	b.Add(unix.SYS_MKDIRAT, slotRoot.Arg(), b.rel(target), num(mode))
}

func (b *script) parents(target string, made map[string]bool) {
	dir := path.Dir(target)
	if made[dir] {
		return
	}
	b.parents(dir, made)
	b.mkdir(dir, 0o755)
	made[dir] = true
}

func (b *script) setattr(dir, at replay.Arg, flags int, attr unix.MountAttr) {
	b.Add(unix.SYS_MOUNT_SETATTR, dir, at, num(flags), replay.Struct(b.Program, attr), num(unix.MOUNT_ATTR_SIZE_VER0))
}

// newfs makes a new file system and leaves its detached mount in slotTree.
func (b *script) newfs(kind string, attr int, opts ...option) {
	b.Add(unix.SYS_FSOPEN, b.Str(kind), num(unix.FSOPEN_CLOEXEC)).Save(slotCtx)
	for _, o := range opts {
		if o.value == "" {
			b.Add(unix.SYS_FSCONFIG, slotCtx.Arg(), num(unix.FSCONFIG_SET_FLAG), b.Str(o.key), num(0), num(0))
			continue
		}
		b.Add(unix.SYS_FSCONFIG, slotCtx.Arg(), num(unix.FSCONFIG_SET_STRING), b.Str(o.key), b.Str(o.value), num(0))
	}
	b.Add(unix.SYS_FSCONFIG, slotCtx.Arg(), num(unix.FSCONFIG_CMD_CREATE), num(0), num(0), num(0))
	b.Add(unix.SYS_FSMOUNT, slotCtx.Arg(), num(unix.FSMOUNT_CLOEXEC), num(attr)).Save(slotTree)
	b.Add(unix.SYS_CLOSE, slotCtx.Arg())
}

func (b *script) attach(mnt, dir, at replay.Arg) {
	b.Add(unix.SYS_MOVE_MOUNT, mnt, b.empty, dir, at, num(unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// mountOn attaches slotTree at target, a directory that is made if needed.
func (b *script) mountOn(target string, made map[string]bool) {
	if !made[target] {
		b.mkdir(target, 0o755)
	}
	b.attach(slotTree.Arg(), slotRoot.Arg(), b.rel(target))
	b.Add(unix.SYS_CLOSE, slotTree.Arg())
}

func needsStage(p mounts.Plan) bool {
	if len(p.Layers) > 0 {
		return true
	}
	for _, op := range p.Ops {
		switch o := op.(type) {
		case mounts.Overlay:
			return true
		case mounts.Mask:
			if o.IsDir {
				return true
			}
		}
	}
	return false
}

// sourcesOf lists the detached mounts that op consumes.
func sourcesOf(op mounts.Op) []*os.File {
	switch o := op.(type) {
	case mounts.Bind:
		return []*os.File{o.Source.Mount}
	case mounts.Overlay:
		fs := []*os.File{o.Data.Mount}
		for _, l := range o.Lower {
			fs = append(fs, l.Mount)
		}
		return fs
	}
	return nil
}
