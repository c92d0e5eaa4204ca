package vm

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// needed are the modules without which the machine has no root, and those of the file
// systems that its tests make on loop devices: Debian's kernel is built with next to
// none. ext4 asks for crc32c and quotas by name, which no dependency tells.
var needed = []string{"virtio_pci", "virtio_blk", "virtio_console", "9pnet_virtio", "9p", "overlay", "crc32c_generic", "ext4", "loop", "quota_v2", "xfs"}

// kernel is what scripts/setup has unpacked.
type kernel struct {
	image string
	// modules are files in an order in which they can be loaded.
	modules []string
}

// findKernel looks into the directory where scripts/setup puts it.
func findKernel() (k kernel, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return k, err
	}
	dir := filepath.Join(cache, "yoi-test-vm")
	k.image = filepath.Join(dir, "vmlinuz")
	if _, err := os.Stat(k.image); err != nil {
		return k, fmt.Errorf("there is no kernel for the virtual machine: run make setup, which fetches it: %w", err)
	}
	files := make(map[string]string)
	err = filepath.WalkDir(filepath.Join(dir, "modules"), func(p string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(p), ".ko"); ok && err == nil {
			files[strings.ReplaceAll(name, "-", "_")] = p
		}
		return err
	})
	if err != nil {
		return k, err
	}
	done := make(map[string]bool)
	for _, m := range needed {
		if err := k.load(m, files, done); err != nil {
			return k, err
		}
	}
	return k, nil
}

// load adds a module behind those that it depends on.
func (k *kernel) load(name string, files map[string]string, done map[string]bool) error {
	if done[name] {
		return nil
	}
	done[name] = true
	file, ok := files[name]
	if !ok {
		return fmt.Errorf("the virtual machine's kernel has no module %s: remove its directory and run make setup", name)
	}
	deps, err := depends(file)
	if err != nil {
		return err
	}
	for _, d := range deps {
		if err := k.load(d, files, done); err != nil {
			return err
		}
	}
	k.modules = append(k.modules, file)
	return nil
}

// depends reads what a module says of itself (modinfo(8)).
func depends(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New(file + " has no .modinfo")
	}
	b, err := s.Data()
	if err != nil {
		return nil, err
	}
	for v := range bytes.SplitSeq(b, []byte{0}) {
		if list, ok := bytes.CutPrefix(v, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(strings.ReplaceAll(string(list), "-", "_"), ","), nil
		}
	}
	return nil, nil
}
