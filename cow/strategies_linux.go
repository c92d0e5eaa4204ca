package cow

func platformStrategies() []Strategy {
	return []Strategy{btrfsSnapshot{}, overlay{}, treeCopy{clone: true}, treeCopy{}}
}
