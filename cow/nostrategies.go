//go:build !linux && !darwin

package cow

// platformStrategies is empty: btrfs, FICLONE and overlayfs are Linux'.
func platformStrategies() []Strategy { return nil }
