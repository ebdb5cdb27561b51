-- Make a ledger as new without knowing its limit: what RESET does, without a script of its kinds.
--
-- KEYS[1]  the root; KEYS[2..]: the hashes of the metrics to be reset; without any, what is in the root.
-- The answer: how many ledgers there were, -1 if there is no root, -2 if it is of another version.
--
-- The meta data stay, the epoch with them: a root that was deleted would look like a loss to its clients, and they
-- would quarantine it. A ledger of which nothing is stored is a fresh one, but what was taken before could be given
-- back to it; so where that is known by a tally, it goes on (`anew` in bucket.lua and fixed_window.lua; the state is
-- described in `codec.py`). Waiters are told to poll, and are served then.

local root = KEYS[1]
local meta = redis.call('HGET', root, 'm')
if not meta then
  return -1
end
local format, seq = struct.unpack('<dd', meta)
if format ~= 1 and format ~= 2 then
  return -2
end
local FOREVER, LONG_AGO = 4503599627370496, -4503599627370496
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- A fresh ledger for which nothing can come back, or nil where it is enough that there is none. What is with clients
-- stays with them, and does not lie here; of a fixed window that is in the book of its leases.
local function anew(value, book)
  local kind, key, capacity = struct.unpack('<ddd', value)
  local front = string.sub(value, 1, key == 1 and 72 or 96)
  local from = #front + 1
  local function lent_at(number)
    return #value >= from + 8 * number + 7 and struct.unpack('<d', value, from + 8 * number) or 0
  end
  local runs = struct.pack('<ddddd', 0, 0, -1, -1, 0)
  if kind == 1 then
    local tat, _, _, tally = struct.unpack('<dddd', value, from)
    tally = (tally + math.max(0, tat - now) + 1) % FOREVER
    return front .. struct.pack('<dddd', LONG_AGO, 0, LONG_AGO, tally) .. string.sub(value, from + 32)
  elseif kind == 2 and lent_at(14) ~= 0 then
    return front .. struct.pack('<dd', capacity - lent_at(14), 0) .. runs .. runs
      .. struct.pack('<dddd', 0, 0, lent_at(14), 1)
  elseif kind == 4 then
    local ends, _, tally = struct.unpack('<ddd', value, from)
    local held = book and string.sub(book, 1, 24) == string.sub(meta, 81, 104)
      and select(6, struct.unpack('<dddddd', book, 25)) or 0
    return front .. struct.pack('<ddd', held > 0 and ends or LONG_AGO, held, tally + 1)
  elseif kind == 5 and lent_at(6) ~= 0 then
    return front .. string.sub(value, from, from + 7) .. runs .. struct.pack('<d', lent_at(6))
  end
end

local found = 0
for i = math.min(2, #KEYS), #KEYS do
  local key = KEYS[i]
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local what, index = string.sub(field, 1, 1), string.sub(field, 2)
    local fresh = what == 's' and anew(redis.call('HGET', key, field), redis.call('HGET', key .. ':l' .. index, 'b'))
    if fresh then
      redis.call('HSET', key, field, fresh)
    elseif what == 's' or what == 'a' or what == 'h' then
      redis.call('HDEL', key, field)
    end
    if what == 's' then
      redis.call('DEL', key .. ':c' .. index, key .. ':o' .. index)
      found = found + 1
    end
  end
end
-- Their pause is lifted; a pause of all is only if that was reset, and a quarantine is not.
meta = string.sub(meta, 1, 8) .. struct.pack('<d', seq + 1) .. string.sub(meta, 17, 32)
  .. (#KEYS == 1 and struct.pack('<d', 0) or string.sub(meta, 33, 40)) .. string.sub(meta, 41)
redis.call('HSET', root, 'm', meta)
redis.call('PUBLISH', string.match(root, '^(.-):{') .. ':news', root)
return found
