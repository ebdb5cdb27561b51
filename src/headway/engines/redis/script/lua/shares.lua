-- Port of core/shares.py, core/demand.py and core/sliding_count.py: how many tokens clients will need, and how many of
-- n each of them may have.

do
  local MILLI, NEWCOMERS, SLOTS = lending.MILLI, 3, 20

  -- How high the water stands; `wants` in the order of size.
  local function level(n, wants)
    local left, count = n, #wants
    for _, want in ipairs(wants) do
      if want * count >= left then
        return (divide(left, count))
      end
      left, count = left - want, count - 1
    end
    return wants[#wants]
  end

  -- The whole tokens each client may have of n. A fraction goes first to a client that has it already, then by its
  -- size, then by `turns`, which are below 2^41.
  function lending.shares(n, wants, held, turns)
    if #wants == 0 then
      return {}
    end
    local whole, total = n * MILLI, 0
    for _, want in ipairs(wants) do
      total = total + want
    end
    local more, top = 0, FOREVER
    if total < whole then
      more = divide(whole - total, #wants + NEWCOMERS)
    else
      local sorted = {}
      for i, want in ipairs(wants) do
        sorted[i] = want
      end
      table.sort(sorted)
      top = level(whole, sorted)
    end
    local parts, keys, index_of, sum, given = {}, {}, {}, 0, 0
    for i, want in ipairs(wants) do
      local share = math.min(want + more, top)
      local part, rest = divide(share, MILLI)
      parts[i], sum, given = part, sum + share, given + part
      if rest > 0 then
        -- One number to sort by.
        local key = ((held[i] <= part and MILLI or 0) + MILLI - rest) * 2199023255552 + turns[i]
        keys[#keys + 1] = key
        index_of[key] = i
      end
    end
    local left = math.ceil(sum / MILLI) - given
    if left > 0 then
      table.sort(keys)
      for j = 1, math.min(left, #keys) do
        local i = index_of[keys[j]]
        parts[i] = parts[i] + 1
      end
    end
    return parts
  end

  -- demand ------------------------------------------------------------------------------------------------------------

  local function forget_slots(count)
    for i = 0, SLOTS - 1 do
      count[i] = 0
    end
    count.total = 0
  end

  local function roll_slots(count, now)
    local newest = divide(now, count.slot)
    if newest - count.newest >= SLOTS then
      forget_slots(count)
      count.newest = newest
    end
    while count.newest < newest do
      count.newest = count.newest + 1
      local _, at = divide(count.newest, SLOTS)
      count.total = count.total - count[at]
      count[at] = 0
    end
    return (SLOTS - 1) * count.slot + now - newest * count.slot + 1
  end

  local function note_slot(count, now, cost)
    roll_slots(count, now)
    local _, at = divide(count.newest, SLOTS)
    count[at] = count[at] + cost
    count.total = count.total + cost
  end

  -- From what is stored: what was counted in slots of another length is forgotten.
  local function open_slots(state, from, span)
    local count = {slot = math.ceil(span / SLOTS), newest = LONG_AGO}
    if #state > from and unpack_from('<d', state, from) == count.slot then
      count.newest, count.total = unpack_from('<dd', state, from + 8)
      for i = 0, SLOTS - 1 do
        count[i] = unpack_from('<d', state, from + 24 + 8 * i)
      end
    else
      forget_slots(count)
    end
    return count
  end

  local function slots_state(count)
    local numbers = {count.slot, count.newest, count.total}
    for i = 0, SLOTS - 1 do
      numbers[4 + i] = count[i]
    end
    return pack_numbers(numbers)
  end

  function lending.open_demand(state, window, span)
    return {
      span = span, first = state ~= '' and unpack_from('<d', state) or LONG_AGO,
      long = open_slots(state, 9, math.max(window, span)),
      recent = open_slots(state, 17 + 8 * (2 + SLOTS), math.max(1, floor(window / 2))),
    }
  end

  -- What was never asked for takes no room; what was not looked at is as it was.
  function lending.demand_state(demand)
    if demand.first == nil then
      return demand
    elseif demand.first == LONG_AGO then
      return ''
    end
    return pack('<d', demand.first) .. slots_state(demand.long) .. slots_state(demand.recent)
  end

  function lending.note_demand(demand, now, cost)
    if demand.first == LONG_AGO then
      demand.first = now
    end
    note_slot(demand.long, now, cost)
    note_slot(demand.recent, now, cost)
  end

  local function square_root(n)
    local root = floor(math.sqrt(n))
    while root * root > n do
      root = root - 1
    end
    while (root + 1) * (root + 1) <= n do
      root = root + 1
    end
    return root
  end

  -- The thousandths of tokens that requests will need within the span.
  function lending.expected(demand, now)
    local covered, long, recent = roll_slots(demand.long, now), demand.long, demand.recent
    local count = long.total
    if count == 0 then
      return 0
    end
    local age = now - demand.first
    if age < covered then
      covered = math.max(age, 2 * recent.slot)
      count = count - 1
    end
    local lately = math.min(roll_slots(recent, now), math.max(age, 2 * recent.slot))
    local seen = recent.total
    local spread = 2 * square_root(seen)
    local want = share_of(count * MILLI, demand.span, covered)
    want = math.min(want, (share_of((seen + spread + 2) * MILLI, demand.span, lately)))
    if seen > spread then
      want = math.max(want, (share_of((seen - spread) * MILLI, demand.span, lately)))
    end
    return math.max(want, MILLI)
  end
end
