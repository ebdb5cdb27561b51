-- What all of a script's parts use. Numbers are doubles: whole numbers are exact below 2^53, so times are
-- microseconds since 1970, and no span is longer than 2^52 of them (142 years).

local FOREVER = 4503599627370496
local LONG_AGO = -FOREVER
local floor = math.floor
local call, pack, unpack_from = redis.call, struct.pack, struct.unpack

-- By number. `reserves`: a time can be promised; `alike`: what is taken at the same moment has the same mark. Each has
-- room for its names from the start: a table that grows is copied, and a script runs from its first line each time.
local kinds = {}

-- floor(a / b) and what is left: the quotient of two large doubles may round up to the next whole number.
local function divide(a, b)
  local q = floor(a / b)
  local r = a - q * b
  if r < 0 then
    return q - 1, r + b
  elseif r >= b then
    return q + 1, r - b
  end
  return q, r
end

local function ceil_to(a, grid)
  local q, r = divide(a, grid)
  return (r > 0 and q + 1 or q) * grid
end

local function pack_numbers(numbers)
  local packed = ''
  for from = 1, #numbers, 100 do
    local to = math.min(from + 99, #numbers)
    packed = packed .. pack('<' .. string.rep('d', to - from + 1), unpack(numbers, from, to))
  end
  return packed
end
