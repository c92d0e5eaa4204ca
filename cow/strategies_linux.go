package cow

import "yoi.dev/yoi-runtime/policy"

func platformStrategies() []Strategy {
	return []Strategy{btrfsSnapshot{}, overlay{}, treeCopy{clone: true}, treeCopy{}, notHere{policy.StrategyAPFSClonefile, "clonefile(2) and APFS are macOS's"}}
}
