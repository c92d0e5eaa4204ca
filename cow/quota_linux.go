package cow

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const (
	iocFSInfo      = 0x8400941f // BTRFS_IOC_FS_INFO, unprivileged
	iocQgroupLimit = 0x8030942b // BTRFS_IOC_QGROUP_LIMIT, CAP_SYS_ADMIN

	qgroupMaxExclusive = 1 << 1 // BTRFS_QGROUP_LIMIT_MAX_EXCL
)

// QuotaMode says how the file system of dir accounts for subvolumes: "qgroup" or
// "squota" (simple quotas, Linux 6.7) on a btrfs where quotas are on, "" elsewhere.
// It asks sysfs, since the ioctls that could tell would change something.
func QuotaMode(dir *os.File) string {
	defer runtime.KeepAlive(dir)
	if fileSystemOf(fd(dir)) != "btrfs" {
		return ""
	}
	var info [1024]byte // struct btrfs_ioctl_fs_info_args
	if ioctlPtr(fd(dir), iocFSInfo, unsafe.Pointer(&info)) != nil {
		return ""
	}
	u := info[16:32]
	at := fmt.Sprintf("/sys/fs/btrfs/%x-%x-%x-%x-%x/qgroups/", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	if b, err := os.ReadFile(at + "enabled"); err != nil || strings.TrimSpace(string(b)) != "1" {
		return ""
	}
	b, err := os.ReadFile(at + "mode")
	if err != nil {
		return "qgroup" // before Linux 6.7 there was nothing else
	}
	return strings.TrimSpace(string(b))
}

// LimitSubvolume has the kernel refuse (EDQUOT) what would make the subvolume that
// dir is the top of, without those inside it, occupy more than bytes that it
// shares with nothing else.
func LimitSubvolume(dir *os.File, bytes int64) error {
	defer runtime.KeepAlive(dir)
	a := struct{ group, flags, maxReferenced, maxExclusive, _, _ uint64 }{flags: qgroupMaxExclusive, maxExclusive: uint64(bytes)}
	switch err := ioctlPtr(fd(dir), iocQgroupLimit, unsafe.Pointer(&a)); err {
	case nil:
		return nil
	case unix.ENOTCONN, unix.ENOTTY, unix.EPERM, unix.ENOENT:
		return policy.Errorf(policy.CodeQuotaUnsupported, "cow.limit", "the file system does not limit a subvolume").Because(err)
	default:
		return diagnose("cow.limit", onTarget, "", err)
	}
}
