package cow

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Project quotas: every inode of ext4 and xfs has a project id, which a directory with
// FS_XFLAG_PROJINHERIT gives to what is made in it, and what inodes of one project
// occupy together can be limited (quotactl(2), ioctl_xfs_fsgetxattr(2)). Only the
// initial user namespace may change an inode's project, so a Worker cannot leave its
// own; nor can anything be renamed or linked into a project from outside (EXDEV).

// ProjectIDs are those of which workspaces have one each: ids that nobody numbers by
// hand, below 2^31, above which some tools fail.
const (
	ProjectIDs     = 0x59000000
	ProjectIDCount = 1 << 20
)

// From linux/quota.h and linux/dqblk_xfs.h.
const (
	sysQuotactlFD = unix.SYS_QUOTACTL_FD // Linux 5.14

	prjQuota  = 2              // PRJQUOTA
	qGetQuota = 0x800007       // Q_GETQUOTA, of both file systems
	qSetQuota = 0x800008       // Q_SETQUOTA, CAP_SYS_ADMIN
	qXGetStat = ('X' << 8) + 5 // Q_XGETQSTAT, of both file systems

	projectEnforced = 1 << 5 // FS_QUOTA_PDQ_ENFD

	qifBlockLimits = 1 << 0 // QIF_BLIMITS
	qifInodeLimits = 1 << 2 // QIF_ILIMITS
	qifBlockSize   = 1024   // QIF_DQBLKSIZE, of limits
)

// quotaStat is struct fs_quota_stat.
type quotaStat struct {
	version uint8
	_       uint8
	flags   uint16
	_       [76]byte
}

// quotaBlock is struct if_dqblk.
type quotaBlock struct {
	blockHard, blockSoft   uint64 // of 1024 bytes
	space                  uint64 // bytes
	inodeHard, inodeSoft   uint64
	inodes                 uint64
	blockGrace, inodeGrace uint64
	valid                  uint32
	_                      uint32
}

func quotactl(f *os.File, cmd int, id uint32, p unsafe.Pointer) error {
	_, _, e := unix.Syscall6(sysQuotactlFD, f.Fd(), uintptr(cmd<<8|prjQuota), uintptr(id), uintptr(p), 0, 0)
	runtime.KeepAlive(f)
	if e != 0 {
		return e
	}
	return nil
}

// ProjectQuota reports whether the file system of dir enforces limits of projects: an
// ext4 or xfs that is mounted with prjquota, on a kernel that has it.
func ProjectQuota(dir *os.File) bool {
	switch fileSystemOf(fd(dir)) {
	case "ext4", "xfs":
	default:
		return false
	}
	s := quotaStat{version: 1} // FS_QSTAT_VERSION
	return quotactl(dir, qXGetStat, 0, unsafe.Pointer(&s)) == nil && s.enforced()
}

// ProjectCountsShared reports whether a block counts for each file that has it: on xfs,
// the only one of the two with reflinks.
func ProjectCountsShared(dir *os.File) bool { return fileSystemOf(fd(dir)) == "xfs" }

func (s quotaStat) enforced() bool { return s.flags&projectEnforced != 0 }

// ProjectUsage is what the inodes of a project occupy.
type ProjectUsage struct{ Bytes, Inodes int64 }

// UsageOfProject asks the file system of dir.
func UsageOfProject(dir *os.File, id uint32) (ProjectUsage, error) {
	var b quotaBlock
	err := quotactl(dir, qGetQuota, id, unsafe.Pointer(&b))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) { // xfs has no record of it
		return ProjectUsage{}, nil
	}
	if err != nil {
		return ProjectUsage{}, noProject(err)
	}
	return ProjectUsage{Bytes: int64(b.space), Inodes: int64(b.inodes)}, nil
}

// FreeProject returns an id of ProjectIDs that no inode of the file system of dir has,
// trying them from the start-th on. The caller keeps others from doing the same until
// an inode has the id.
func FreeProject(dir *os.File, start uint32) (uint32, error) {
	return freeProject(start, func(id uint32) (ProjectUsage, error) { return UsageOfProject(dir, id) })
}

func freeProject(start uint32, usage func(id uint32) (ProjectUsage, error)) (uint32, error) {
	const tries = 4096 // more workspaces than any host has
	for i := range uint32(tries) {
		id := ProjectIDs + (start+i)%ProjectIDCount
		u, err := usage(id)
		if err != nil {
			return 0, err
		}
		if u == (ProjectUsage{}) {
			return id, nil
		}
	}
	return 0, policy.Errorf(policy.CodeQuotaUnsupported, "cow.project", "no free project id was found on the file system")
}

// LimitProject has the kernel refuse what would make the inodes of a project occupy
// more than bytes, or be more than inodes. 0 is no limit. xfs refuses with ENOSPC, ext4
// with EDQUOT.
func LimitProject(dir *os.File, id uint32, bytes, inodes int64) error {
	b := limitBlock(bytes, inodes)
	if err := quotactl(dir, qSetQuota, id, unsafe.Pointer(&b)); err != nil {
		return noProject(err)
	}
	return nil
}

func limitBlock(bytes, inodes int64) quotaBlock {
	return quotaBlock{
		blockHard: uint64(bytes+qifBlockSize-1) / qifBlockSize, inodeHard: uint64(inodes),
		valid: qifBlockLimits | qifInodeLimits,
	}
}

func noProject(err error) error {
	return policy.Errorf(policy.CodeQuotaUnsupported, "cow.project", "the file system does not limit a project").Because(err)
}

// fileAttr is struct fsxattr.
type fileAttr struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

const (
	iocGetXattr = 0x801c581f // FS_IOC_FSGETXATTR
	iocSetXattr = 0x401c5820 // FS_IOC_FSSETXATTR

	xflagProjectInherit = 0x200 // FS_XFLAG_PROJINHERIT
)

// SetProject gives an empty directory, and so all that is made in it, to a project.
func SetProject(dir *os.File, id uint32) error {
	defer runtime.KeepAlive(dir)
	var a fileAttr
	err := ioctlPtr(fd(dir), iocGetXattr, unsafe.Pointer(&a))
	if err == nil {
		a.project, a.flags = id, a.flags|xflagProjectInherit
		err = ioctlPtr(fd(dir), iocSetXattr, unsafe.Pointer(&a))
	}
	if err != nil {
		return noProject(err)
	}
	return nil
}
