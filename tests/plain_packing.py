"""How rows are filled, as plain loops over samples."""


def plain_rows(pack, shape, units, num_carried):
    """The row of each unit, None where it waits.

    Args:
        pack, shape: the rule.
        units: dicts with `length`, `patches`, `segments`, `cost`.
        num_carried: how many of the first are carried.
    """
    if pack.method == "pad":
        return [i if i < shape.rows else None for i in range(len(units))]
    fill = {"best_fit": best_fit, "first_fit": first_fit, "balanced": cheapest_fit}[pack.method]
    rows = fill(pack, shape, units, num_carried)
    rows = sorted((sorted(row) for row in rows if row), key=lambda row: row[0])
    number = {i: r for r, row in enumerate(rows) for i in row}
    return [number.get(i) for i in range(len(units))]


def room_in(pack, shape, units, row):
    """Places, patches and segments that a row still holds."""
    most = pack.max_segments_per_row or shape.seq_len
    return (
        shape.seq_len - sum(units[i]["length"] for i in row),
        pack.patches_per_row - sum(units[i]["patches"] for i in row),
        most - sum(units[i]["segments"] for i in row),
    )


def fits(pack, shape, units, row, i):
    sizes = (units[i]["length"], units[i]["patches"], units[i]["segments"])
    return all(size <= room for size, room in zip(sizes, room_in(pack, shape, units, row), strict=True))


def first_fit(pack, shape, units, num_carried):
    rows = [[] for _ in range(shape.rows)]
    for i in range(len(units)):
        for row in rows:
            if fits(pack, shape, units, row, i):
                row.append(i)
                break
    return rows


def cheapest_fit(pack, shape, units, num_carried):
    rows = [[] for _ in range(shape.rows)]
    dearest_first = sorted(range(num_carried, len(units)), key=lambda i: (-units[i]["cost"], i))
    for i in [*range(num_carried), *dearest_first]:
        candidates = [row for row in rows if fits(pack, shape, units, row, i)]
        if candidates:
            min(candidates, key=lambda row: sum(units[j]["cost"] for j in row)).append(i)
    return rows


def best_fit(pack, shape, units, num_carried):
    """A block of the longest at a time into the tightest rows; then the emptiest rows take what they can."""
    rows = [[] for _ in range(shape.rows)]
    size = [size_of(pack, shape, unit) for unit in units]
    is_small = [i >= num_carried and size[i] <= shape.seq_len // 8 for i in range(len(units))]
    longest_first = sorted(range(num_carried, len(units)), key=lambda i: (-size[i], i))
    waiting = [*range(num_carried), *(i for i in longest_first if not is_small[i])]
    block_size = max(shape.rows // 8, 1)
    while waiting:
        block, waiting = waiting[:block_size], waiting[block_size:]
        again = []
        for special in (True, False):
            rooms = [room_for(pack, shape, units, row, special) for row in rows]
            free = sorted(range(shape.rows), key=lambda r: (rooms[r], r))
            for i in sorted(
                (i for i in block if is_special(units[i]) == special), key=lambda i: (size[i], -i)
            ):
                row = next((r for r in free if rooms[r] >= size[i]), None)
                if row is not None:
                    free.remove(row)
                    rows[row].append(i)
                elif max(rooms) >= size[i]:
                    again.append(i)
        waiting = again + waiting
    for special in (True, False):
        rest = [i for i in longest_first if is_small[i] and is_special(units[i]) == special]
        taken = True
        while taken:
            taken = False
            rooms = [room_for(pack, shape, units, row, special) for row in rows]
            for r in sorted(range(shape.rows), key=lambda r: (-rooms[r], r)):
                i = next((i for i in rest if size[i] <= rooms[r]), None)
                if i is not None:
                    rows[r].append(i)
                    rest.remove(i)
                    taken = True
    return rows


def is_special(unit):
    return unit["patches"] > 0 or unit["segments"] > 1


def size_of(pack, shape, unit):
    """Places, or as many as stand for its patches and segments."""
    if not is_special(unit):
        return unit["length"]
    most = pack.max_segments_per_row or shape.seq_len
    return max(
        unit["length"],
        -(-unit["patches"] * shape.seq_len // max(pack.patches_per_row, 1)),
        -(-unit["segments"] * shape.seq_len // most),
    )


def room_for(pack, shape, units, row, special):
    """The largest size that a row still holds."""
    places, patches, segments = room_in(pack, shape, units, row)
    if not special:
        return places if segments else 0
    most = pack.max_segments_per_row or shape.seq_len
    rooms = [places if segments else 0, segments * shape.seq_len // most]
    if pack.patches_per_row:
        rooms.append(patches * shape.seq_len // pack.patches_per_row)
    return min(rooms)
