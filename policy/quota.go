package policy

import (
	"errors"
	"strconv"
)

// Quota bounds the disk of one workspace. Zero means no bound.
type Quota struct {
	// Bytes are those that the workspace shares with nothing else.
	Bytes int64 `json:"disk_bytes,omitempty"`
	// Inodes are files, directories and links beyond those of its trees.
	Inodes int64 `json:"inodes,omitempty"`
	// Hard demands that the file system itself refuses what is beyond. Without it
	// a file system that cannot is measured while the Worker runs.
	Hard bool `json:"hard,omitempty"`
}

// QuotaEnforcement is how a quota is held.
type QuotaEnforcement string

const (
	QuotaBtrfs    QuotaEnforcement = "btrfs_qgroup"  // the kernel refuses the write, EDQUOT
	QuotaProject  QuotaEnforcement = "project_quota" // the kernel refuses the write: EDQUOT on ext4, ENOSPC on xfs
	QuotaMeasured QuotaEnforcement = "measured"      // measured now and then; exceeding stops the Worker
)

// QuotaEvidence says how each bound of a quota is held; "" where there is none.
type QuotaEvidence struct {
	Bytes  QuotaEnforcement `json:"disk_bytes_by,omitempty"`
	Inodes QuotaEnforcement `json:"inodes_by,omitempty"`
}

// Validate refuses bounds under which nothing would run.
func (q Quota) Validate() error {
	const op = "policy.quota"
	switch {
	case q.Bytes < 0 || q.Bytes > 1<<60 || (q.Bytes > 0 && q.Bytes < 64<<10):
		return Errorf(CodePolicyInvalid, op, "a quota of %d bytes is not between 64 KiB and 1 EiB", q.Bytes)
	case q.Inodes < 0 || q.Inodes > 1<<40 || (q.Inodes > 0 && q.Inodes < 16):
		return Errorf(CodePolicyInvalid, op, "a quota of %d inodes is less than 16 or too large", q.Inodes)
	case q.Hard && q.Bytes == 0 && q.Inodes == 0:
		return Errorf(CodePolicyInvalid, op, "a hard quota names neither bytes nor inodes")
	}
	return nil
}

// ParseSize reads a number of bytes, with K, M or G behind it for powers of 1024.
func ParseSize(s string) (uint64, error) {
	shift := 0
	if n := len(s); n > 0 {
		switch s[n-1] {
		case 'K', 'k':
			shift = 10
		case 'M', 'm':
			shift = 20
		case 'G', 'g':
			shift = 30
		}
		if shift > 0 {
			s = s[:n-1]
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, errors.New("it is not a number")
	}
	if n<<shift>>shift != n {
		return 0, errors.New("it is too large")
	}
	return n << shift, nil
}
